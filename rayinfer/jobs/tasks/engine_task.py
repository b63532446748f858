"""Task on an engine: rows become requests in this thread, the engine's thread computes them."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from rayinfer.errors import RequestError
from rayinfer.jobs.interfaces import Row
from rayinfer.jobs.providers import InferenceTask, RowOutput, SeededRow
from rayinfer.jobs.tasks.engine_model import LoadedEngine
from rayinfer.jobs.tasks.engine_thread import EngineJob, EngineProgress, EngineThread
from rayinfer.jobs.tasks.row_inputs import InputSettings, order_text

DEFAULT_SEQUENCES = 64  # of an engine that does not say how many it runs at once
RUNNING_FACTOR = 2  # rows in the task for each that runs: as many wait for a place in the batch


class EngineTask(InferenceTask):
    """Task that keeps an engine's continuous batch full: rows enter and leave it one by one."""

    def __init__(self, inputs: InputSettings) -> None:
        self.inputs = inputs
        self._model: LoadedEngine | None = None
        self._thread: EngineThread | None = None
        self._refused: list[RowOutput] = []
        self._num_ended = 0

    def attach(self, model: Any) -> None:
        """Receive the engine and start its thread."""
        assert isinstance(model, LoadedEngine), f"the model of this task is an engine, not {type(model).__name__}"
        self._model = model
        self.prepare(model)
        self._thread = EngineThread(model.engine)

    @property
    def model(self) -> LoadedEngine:
        """The loaded engine."""
        assert self._model is not None, "the task has no model yet"
        return self._model

    @property
    def thread(self) -> EngineThread:
        """The engine's thread."""
        assert self._thread is not None, "the task has no model yet"
        return self._thread

    @property
    def capacity(self) -> int:
        """Rows that run, and as many that wait for a place."""
        return RUNNING_FACTOR * (self.model.engine.description.max_num_seqs or DEFAULT_SEQUENCES)

    @property
    def work_done(self) -> int:
        """Steps of the engine and ended rows."""
        return self._num_ended + (0 if self._thread is None else self._thread.num_steps)

    def order_text(self, row: Row) -> str:
        """Return the row's prompt."""
        return order_text(row.data, self.inputs)

    def submit(self, rows: Sequence[SeededRow]) -> None:
        """Make requests of rows and pass them to the engine; what is no request becomes an error."""
        jobs: list[EngineJob] = []
        for row in rows:
            try:
                jobs += self.make_jobs(row)
            except RequestError as error:
                self._refused.append(RowOutput(index=row.row.index, error=str(error)))
        if jobs:
            self.thread.submit(jobs)

    def collect(self, timeout_s: float) -> list[RowOutput]:
        """Wait for rows to end; raises EngineDead."""
        outputs, self._refused = self._refused, []
        for progress in self.thread.collect(0.0 if outputs else timeout_s):
            if (output := self.read_progress(progress)) is not None:
                outputs.append(output)
        self._num_ended += len(outputs)
        return outputs

    def close(self) -> None:
        """End the engine's thread, and free the engine."""
        if self._thread is not None:
            self._thread.close()

    @abstractmethod
    def prepare(self, model: LoadedEngine) -> None:
        """Check the job's settings against the model; raises ConfigError and RequestError."""

    @abstractmethod
    def make_jobs(self, row: SeededRow) -> list[EngineJob]:
        """Return a row's requests; raises RequestError."""

    @abstractmethod
    def read_progress(self, progress: EngineProgress) -> RowOutput | None:
        """Apply what the engine returned; returns the row's output once it has ended."""


def usage(prompt_tokens: int, completion_tokens: int) -> Mapping[str, int]:
    """Return OpenAI's object of token counts; cached tokens, which depend on the batch, are not among them."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
