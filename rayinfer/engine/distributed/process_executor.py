"""The other ranks of an engine without Ray: processes that this one starts, and that never outlive it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path

import torch

from rayinfer.config import EngineConfig
from rayinfer.engine.distributed.process_state import is_stopped
from rayinfer.engine.distributed.rank_worker import run_rank
from rayinfer.engine.ranks.rank_coordinates import place_of
from rayinfer.engine.ranks.rendezvous import LOOK_ROUND_S, Rendezvous
from rayinfer.errors import ConfigError, EngineDead, RayinferError

ORPHANED_S = 2.0  # for a rank to end in order when its rank 0 is gone
# Not multiprocessing: that would run the caller's script again in every rank, and a notebook has none.
_RUN = "import sys; sys.path[:] = sys.argv[1:]; from rayinfer.engine.distributed.process_executor import main; main()"


class RankProcesses:
    """Ranks 1 to n - 1 as processes of this machine, one after the other ended when the engine does."""

    def __init__(self, config: EngineConfig, folder: Path, rendezvous: Rendezvous) -> None:
        num_ranks = place_of(config, 0).world_size
        if torch.cuda.is_available() and torch.cuda.device_count() < num_ranks:
            raise ConfigError(f"{num_ranks} ranks need as many GPUs, and there are {torch.cuda.device_count()}")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._num_stopped_looks: Counter[int] = Counter()  # by rank, one after the other
        self._most_stopped_looks = rendezvous.timeout_s / LOOK_ROUND_S
        try:
            for rank in range(1, num_ranks):
                self._start(config, folder, rendezvous, rank)
        except BaseException:
            self.end(0.0)
            raise

    @property
    def process_ids(self) -> list[int]:
        """Of rank 1, rank 2, and so on."""
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Raise EngineDead when one of them has ended, or was stopped at every look for the group's timeout.

        It is called every LOOK_ROUND_S. The reason why a rank has ended is in its log.
        """
        for rank, process in enumerate(self._processes, start=1):
            if (code := process.poll()) is not None:
                raise EngineDead(f"rank {rank} ended with code {code} before the engine was ready")
            self._num_stopped_looks[rank] = self._num_stopped_looks[rank] + 1 if is_stopped(process.pid) else 0
            if self._num_stopped_looks[rank] > self._most_stopped_looks:
                raise EngineDead(f"rank {rank} is lost: its process was stopped before the engine was ready")

    def is_stopped(self, rank: int) -> bool:
        """Whether a rank's process was stopped, or has ended."""
        process = self._processes[rank - 1]
        return process.poll() is not None or is_stopped(process.pid)

    def end(self, grace_s: float) -> None:
        """Wait until they exit, as they do when rank 0 closes its connections; kill those that have not by then."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()  # which ends a stopped one, too
                process.wait()
                grace_s = 0.0

    def _start(self, config: EngineConfig, folder: Path, rendezvous: Rendezvous, rank: int) -> None:
        process = subprocess.Popen([sys.executable, "-c", _RUN, *sys.path], stdin=subprocess.PIPE)
        self._processes.append(process)
        order = {
            "config": config.model_dump(mode="json"),
            "folder": str(folder),
            "rendezvous": [rendezvous.host, rendezvous.port, rendezvous.key, rendezvous.timeout_s],
            "rank": rank,
        }
        assert process.stdin is not None
        # Its standard input stays open: that it ends is how the process learns that this one is gone.
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()


def main() -> None:
    """Run the rank that the first line of standard input names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process: rank 0 decides what it means
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    config = EngineConfig.model_validate(order["config"])
    try:
        rendezvous, parent = Rendezvous(*order["rendezvous"]), os.getppid()
        run_rank(config, Path(order["folder"]), rendezvous, order["rank"], lambda rank: is_stopped(parent))
    except RayinferError as error:  # no trace: rank 0 has heard of it, or is what failed
        sys.stderr.write(f"rank {order['rank']} ends: {type(error).__name__}: {error}\n")
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
    # At once: rank 0 waits for this, and taking all of torch apart takes a second.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # not through the buffer: its lock, held for ever, would keep Python from ending
    # Whatever the main thread is in: without rank 0 nothing can be brought to an end. A grace for an orderly one.
    threading.Event().wait(ORPHANED_S)
    os._exit(1)
