"""Ranks of an engine without Ray: processes that rank 0 starts, and that never outlive it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import torch

from rayinfer.config import EngineConfig
from rayinfer.engine.distributed.rank_worker import run_rank
from rayinfer.engine.ranks.rank_coordinates import coordinates_of
from rayinfer.engine.ranks.rendezvous import Rendezvous
from rayinfer.errors import ConfigError, EngineDead, RayinferError
from rayinfer.liveness import DEFAULT_LIMITS, LivenessLimits, TickWatch, is_stopped

# Not multiprocessing: that would run the caller's script again in every rank, and a notebook has none.
_RUN = "import sys; sys.path[:] = sys.argv[1:]; from rayinfer.engine.distributed.process_executor import main; main()"


class RankProcesses:
    """Ranks 1 to n - 1 as processes of this machine, ended one after the other with the engine."""

    def __init__(
        self, config: EngineConfig, folder: Path, rendezvous: Rendezvous, limits: LivenessLimits = DEFAULT_LIMITS
    ) -> None:
        num_ranks = coordinates_of(config, 0).world_size
        if torch.cuda.is_available() and torch.cuda.device_count() < num_ranks:
            raise ConfigError(f"{num_ranks} ranks need as many GPUs, and there are {torch.cuda.device_count()}")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._watches = [TickWatch(limits.rank_poll_s) for _ in range(1, num_ranks)]
        self._timeout_s = rendezvous.timeout_s
        try:
            for rank in range(1, num_ranks):
                self._start(config, folder, rendezvous, rank)
        except BaseException:
            self.end(0.0)
            raise

    @property
    def process_ids(self) -> list[int]:
        """The process ids of rank 1, rank 2, and so on."""
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Raise EngineDead when one of them has exited, or was stopped for the group's timeout.

        It is called every `rank_poll_s`. The reason why a rank has exited is in its log.
        """
        for rank, (process, watch) in enumerate(zip(self._processes, self._watches, strict=True), start=1):
            if (code := process.poll()) is not None:
                raise EngineDead(f"rank {rank} ended with code {code} before the engine was ready")
            if is_stopped(process.pid):
                watch.tick()
            else:
                watch.reset()
            if watch.has_missed(self._timeout_s):
                raise EngineDead(f"rank {rank} is lost: its process was stopped before the engine was ready")

    def is_stopped(self, rank: int) -> bool:
        """Whether a rank's process was stopped, or has exited."""
        process = self._processes[rank - 1]
        return process.poll() is not None or is_stopped(process.pid)

    def end(self, grace_s: float) -> None:
        """Wait until they exit, as they do when rank 0 closes its connections; kill the others after the grace."""
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
        arguments = {
            "config": config.model_dump(mode="json"),
            "folder": str(folder),
            "rendezvous": [rendezvous.host, rendezvous.port, rendezvous.key, rendezvous.timeout_s],
            "rank": rank,
        }
        assert process.stdin is not None
        # Its standard input stays open: the process exits when it is closed.
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        process.stdin.flush()


def main() -> None:
    """Run the rank that the first line of standard input names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process: rank 0 handles it
    arguments = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_parent, name="parent", daemon=True).start()
    config = EngineConfig.model_validate(arguments["config"])
    try:
        rendezvous, parent = Rendezvous(*arguments["rendezvous"]), os.getppid()
        run_rank(config, Path(arguments["folder"]), rendezvous, arguments["rank"], lambda rank: is_stopped(parent))
    except RayinferError as error:  # no traceback: it was reported to rank 0, or rank 0 is what failed
        sys.stderr.write(f"rank {arguments['rank']} ends: {type(error).__name__}: {error}\n")
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
    # At once: rank 0 waits for this exit, and torch's own cleanup takes a second.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # not through the buffer: its lock, held for ever, would keep Python from exiting
    # Whatever the main thread is doing: without rank 0 no step can finish. A grace for an orderly exit.
    threading.Event().wait(DEFAULT_LIMITS.orphan_grace_s)
    os._exit(1)
