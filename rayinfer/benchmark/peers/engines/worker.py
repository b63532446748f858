"""Process of one engine under test: reads workloads as lines of JSON, writes seconds.

`worker.py ADAPTER SETTINGS` runs under the engine's own interpreter, where rayinfer may be missing: it imports the
standard library alone. ADAPTER is a file with DISTRIBUTION, the package whose version counts, and
`open_engine(settings)`, which returns a function from prompts and answer lengths to the lengths that came out.
"""

import json
import os
import runpy
import sys
import time
from importlib.metadata import version
from typing import Any, TextIO


def main() -> None:
    """Open the engine, say so, and answer until the input ends."""
    # Engines print what they like, and so do the processes they start: all of that goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        adapter = runpy.run_path(sys.argv[1])
        answer = adapter["open_engine"](json.loads(sys.argv[2]))
    except Exception as error:
        _say(answers, error=_in_one_line(error))
        raise
    _say(answers, version=version(adapter["DISTRIBUTION"]))
    for line in sys.stdin:
        work = json.loads(line)
        try:
            started = time.perf_counter()
            lengths = answer(work["prompts"], work["lengths"])
            _say(answers, seconds=time.perf_counter() - started, lengths=lengths)
        except Exception as error:
            _say(answers, error=_in_one_line(error))


def _say(answers: TextIO, **message: Any) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


if __name__ == "__main__":  # an engine may start processes that import this file again
    main()
