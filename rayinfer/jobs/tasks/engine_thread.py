"""Thread of an engine in a job: requests in, ended requests out; text is made elsewhere."""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rayinfer.engine.loop.stepped_engine import SteppedEngine
from rayinfer.errors import EngineDead, RequestError
from rayinfer.outputs import TokenDelta
from rayinfer.protocols import GenerationRequest

IDLE_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineJob:
    """Request for the engine; `is_watched` has each delta returned at once, for a caller that may abort it."""

    request: GenerationRequest
    is_watched: bool = False


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """Deltas of one request: all of an ended one that is not watched, else those of a step."""

    request_id: str
    deltas: list[TokenDelta] = field(default_factory=list)
    error: str | None = None  # of a refused request

    @property
    def has_ended(self) -> bool:
        """Whether nothing follows."""
        return self.error is not None or self.deltas[-1].finish_reason is not None


class EngineThread:
    """Owner of an engine while it runs; its methods are for one other thread."""

    def __init__(self, engine: SteppedEngine) -> None:
        self.num_steps = 0  # so far
        self._engine = engine
        self._commands: queue.SimpleQueue[list[EngineJob] | list[str] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[list[EngineProgress]] = queue.SimpleQueue()
        self._deltas: dict[str, list[TokenDelta]] = {}  # of requests that are not watched; used by the thread only
        self._is_closed = False
        self._failure: BaseException | None = None
        engine.on_ready = lambda: self._commands.put([])
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[EngineJob]) -> None:
        """Queue requests for the next step."""
        self._commands.put(list(jobs))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests before the next step; ended ones are ignored."""
        self._commands.put(list(request_ids))

    def collect(self, timeout_s: float) -> list[EngineProgress]:
        """Wait for progress and return all there is; none after so many seconds. Raises EngineDead."""
        progress: list[EngineProgress] = []
        try:
            progress += self._results.get(timeout=timeout_s)
            while not self._results.empty():
                progress += self._results.get_nowait()
        except queue.Empty:
            pass
        if not progress and self._failure is not None:
            raise EngineDead(f"the engine ended: {type(self._failure).__name__}: {self._failure}") from self._failure
        return progress

    def close(self) -> None:
        """End the thread after its current step, and free the engine."""
        if not self._is_closed:
            self._is_closed = True
            self._commands.put(None)
            self._thread.join()
            self._engine.exit()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._run_commands():
                    if self._engine.wait_s > 0:
                        continue
                    self._publish(self._engine.step())
                    self.num_steps += 1
        except BaseException as error:
            self._failure = error
            self._results.put([])

    def _run_commands(self) -> bool:
        """Run what is queued; wait for a command while there is nothing to compute. Returns False at the end."""
        wait_s = self._engine.wait_s if self._engine.can_advance else IDLE_S
        try:
            commands = self._commands.get(block=wait_s > 0, timeout=wait_s)
            while commands is not None:
                for command in commands:
                    self._run_command(command)
                commands = self._commands.get_nowait()
        except queue.Empty:
            return True
        return False

    def _run_command(self, command: EngineJob | str) -> None:
        if isinstance(command, str):
            self._engine.abort(command)
            self._deltas.pop(command, None)
            return
        request = command.request
        try:
            self._engine.add_request(request)
        except RequestError as error:
            self._results.put([EngineProgress(request.request_id, error=str(error))])
            return
        if not command.is_watched:
            self._deltas[request.request_id] = []

    def _publish(self, deltas: list[TokenDelta]) -> None:
        self._engine.take_block_events()  # they would add up
        progress = []
        for delta in deltas:
            kept = self._deltas.get(delta.request_id)
            if kept is None:
                progress.append(EngineProgress(delta.request_id, [delta]))
                continue
            kept.append(delta)
            if delta.finish_reason is not None:
                progress.append(EngineProgress(delta.request_id, self._deltas.pop(delta.request_id)))
        if progress:
            self._results.put(progress)
