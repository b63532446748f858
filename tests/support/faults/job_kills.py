"""Runs of a batch job that kill themselves at a given durable operation: `python job_kills.py SETTINGS.json POINT ...`.

Every run is a fork of this process, so that torch is imported once. Prints a JSON list: of each run its end, "killed"
or "done", and the durable operations that it began.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

from rayinfer.jobs.batch_job import batch_job, configure_batch_job

OPERATIONS = ("fsync", "replace", "rename", "unlink")
NEVER = 10**9


def kill_at(point, counter):
    """Count the calls that make something durable; the process dies before the one with this number."""
    for name in OPERATIONS:
        original = getattr(os, name)

        def counted(*args, original=original, **kwargs):
            number = int(counter.read_text()) + 1
            counter.write_text(str(number))
            if number == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(os, name, counted)


def run(settings, point):
    """Run the job in a fork; returns how it ended."""
    counter = Path(settings["output"] + ".count")
    counter.write_text("0")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            kill_at(point, counter)
            configure_batch_job(batch_job(**settings)).infer()
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    end = "killed" if os.WIFSIGNALED(status) else "done" if os.WEXITSTATUS(status) == 0 else "failed"
    return {"end": end, "operations": int(counter.read_text())}


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps([run(job, int(point) if point != "never" else NEVER) for point in sys.argv[2:]]))
