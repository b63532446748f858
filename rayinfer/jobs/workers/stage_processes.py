"""Pipeline over processes: each stage computes a microbatch while the one before computes the next."""

import multiprocessing
import pickle
import queue
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from rayinfer.jobs.interfaces import JobError

END_S = 5.0  # for a stage to end by itself
StageLoader = Callable[[], torch.nn.Module]


class StageFailed(JobError):
    """A stage that raised, or whose process ended; the message names it."""


class StageProcesses:
    """One process per stage, connected by pipes in a ring with this one; results come in the microbatches' order.

    A stage gets the keywords that the one before returned: a mapping, or one tensor as the only argument.
    """

    def __init__(self, loaders: Sequence[StageLoader]) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe(duplex=False) for _ in range(len(loaders) + 1)]
        self._first, self._last = pipes[0][1], pipes[-1][0]
        self._processes = [
            context.Process(target=run_stage, args=(stage, loader, pipes[stage][0], pipes[stage + 1][1]), daemon=True)
            for stage, loader in enumerate(loaders)
        ]
        for process in self._processes:
            process.start()
        for stage in range(len(loaders)):  # the stages' ends: a pipe ends once the stage before it has ended
            pipes[stage][0].close()
            pipes[stage + 1][1].close()
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, name="pipeline", daemon=True)
        self._sender.start()

    def run(self, microbatches: Sequence[Any]) -> list[Any]:
        """Pass every microbatch through all stages; raises StageFailed."""
        for each in microbatches:
            self._outgoing.put(each)
        return [self._receive() for _ in microbatches]

    def close(self) -> None:
        """End the stages."""
        self._outgoing.put(None)
        self._sender.join(END_S)
        for process in self._processes:
            process.join(END_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._last.close()

    def _send(self) -> None:
        """Send beside the reading thread: a stage that waits for a reader reads nothing itself."""
        try:
            while (each := self._outgoing.get()) is not None:
                self._first.send_bytes(pickle.dumps(each))
        except OSError:
            pass  # the reading thread sees the end of the pipe
        finally:
            self._first.close()

    def _receive(self) -> Any:
        try:
            result = pickle.loads(self._last.recv_bytes())
        except (EOFError, OSError):
            ended = [stage for stage, process in enumerate(self._processes) if not process.is_alive()]
            raise StageFailed(f"the process of pipeline stage {ended[0] if ended else '?'} has ended") from None
        if isinstance(result, StageFailed):
            raise result
        return result


def run_stage(stage: int, loader: StageLoader, incoming: Connection, outgoing: Connection) -> None:
    """Load a stage and pass microbatches through it until the pipe ends; an error is passed on in their place."""
    failure: StageFailed | None = None
    module: torch.nn.Module | None = None
    try:
        module = loader()
    except Exception as error:
        failure = _failure(stage, error)
    with torch.inference_mode():
        while True:
            try:
                inputs = pickle.loads(incoming.recv_bytes())
            except EOFError:
                return
            if failure is not None or isinstance(inputs, StageFailed):
                outgoing.send_bytes(pickle.dumps(failure or inputs))
                continue
            try:
                assert module is not None
                result = module(**inputs) if isinstance(inputs, dict) else module(inputs)
            except Exception as error:
                result = _failure(stage, error)
            outgoing.send_bytes(pickle.dumps(result))


def _failure(stage: int, error: Exception) -> StageFailed:
    return StageFailed(f"pipeline stage {stage}: {type(error).__name__}: {' '.join(str(error).split())}")
