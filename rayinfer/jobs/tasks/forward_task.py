"""Forward-only tasks: one pass of a torch module over batches of rows, in microbatches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from rayinfer.errors import RequestError
from rayinfer.jobs.events import FORWARD_FINISHED, FORWARD_STARTED, EventBus, ForwardContext
from rayinfer.jobs.providers import FinalizeContext, InferenceTask, JobContext, RowOutput, SeededRow

Tensors = dict[str, torch.Tensor]
BATCHES_IN_TASK = 2  # one that runs, and the next one


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """Inputs of a batch: keywords of the module, whose first dimension is the rows, and what `process_outputs` needs.

    State values that are tensors or lists with one entry per row are cut into microbatches, too; others are shared.
    """

    inputs: Tensors
    state: Mapping[str, Any] = field(default_factory=dict)


class ForwardTask(ABC):
    """User's part of a forward-only job."""

    output_columns: tuple[str, ...] = ("output",)

    @abstractmethod
    def build_forward_inputs(self, rows: Sequence[SeededRow]) -> ForwardInputs:
        """Make a batch; raises RequestError for rows that cannot be computed, which are then tried one by one."""

    @abstractmethod
    def process_outputs(
        self, rows: Sequence[SeededRow], results: Any, state: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        """Return the columns of each row of a microbatch from the results of the (last stage's) module."""

    def register_events(self, events: EventBus) -> None:  # noqa: B027 - optional
        """Subscribe to events of the job."""

    def finalize(self, context: FinalizeContext) -> None:  # noqa: B027 - optional
        """End the task; called exactly once by each run."""


class Pipeline(Protocol):
    """Stages of a module over microbatches; results come in their order."""

    def run(self, microbatches: Sequence[Tensors]) -> list[Any]:
        """Pass every microbatch through all stages."""

    def close(self) -> None:
        """End the stages."""


class SingleStage:
    """Pipeline of one stage, in this process."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def run(self, microbatches: Sequence[Tensors]) -> list[Any]:
        """Pass every microbatch through the module."""
        return [self._module(**each) for each in microbatches]

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class ForwardTaskProvider:
    """TaskProvider around a maker of a ForwardTask."""

    make: Callable[[], ForwardTask]

    def __call__(self, context: JobContext) -> "ForwardInferenceTask":
        """Make the task with the job's batch sizes."""
        sizes = context.parameters.batching
        return ForwardInferenceTask(
            self.make(), sizes.global_batch_size // context.mesh.data_parallel, sizes.microbatch_size
        )


class ForwardInferenceTask(InferenceTask):
    """InferenceTask around a ForwardTask: runs a batch in each `collect`.

    Rows are batched by their index, so that a resumed job has the batches of one that was not interrupted; the last
    batch, and its last microbatch, may be ragged.
    """

    def __init__(self, task: ForwardTask, batch_size: int, microbatch_size: int) -> None:
        self._task = task
        self._batch_size = batch_size
        self._microbatch_size = microbatch_size
        self._rows: list[SeededRow] = []
        self._pipeline: Pipeline | None = None
        self._events = EventBus()
        self._num_batches = 0

    @property
    def capacity(self) -> int:
        """Two batches."""
        return BATCHES_IN_TASK * self._batch_size

    @property
    def batch_rows(self) -> int:
        """Rows by whose index batches are cut."""
        return self._batch_size

    @property
    def output_columns(self) -> tuple[str, ...]:
        """The user's columns."""
        return self._task.output_columns

    @property
    def work_done(self) -> int:
        """Batches so far."""
        return self._num_batches

    def attach(self, model: Any) -> None:
        """Receive a module, or a pipeline of stages."""
        self._pipeline = SingleStage(model) if isinstance(model, torch.nn.Module) else model

    def register_events(self, events: EventBus) -> None:
        """Trigger events of forward passes there, and subscribe the user's handlers."""
        self._events = events
        self._task.register_events(events)

    def submit(self, rows: Sequence[SeededRow]) -> None:
        """Keep rows until their batch runs."""
        self._rows += rows
        self._rows.sort(key=lambda each: each.row.index)

    def collect(self, timeout_s: float) -> list[RowOutput]:
        """Run the oldest batch."""
        if not self._rows:
            return []
        number = self._rows[0].row.index // self._batch_size
        batch = [each for each in self._rows if each.row.index // self._batch_size == number]
        self._rows = self._rows[len(batch) :]
        self._num_batches += 1
        return self._run(batch)

    def finalize(self, context: FinalizeContext) -> None:
        """End the user's task."""
        self._task.finalize(context)

    def close(self) -> None:
        """End the stages."""
        if self._pipeline is not None:
            self._pipeline.close()

    def _run(self, batch: Sequence[SeededRow]) -> list[RowOutput]:
        try:
            built = self._task.build_forward_inputs(batch)
        except RequestError as error:
            if len(batch) == 1:
                return [RowOutput(index=batch[0].row.index, error=str(error))]
            return [output for row in batch for output in self._run([row])]
        assert self._pipeline is not None, "the task has no model yet"
        self._events.trigger(FORWARD_STARTED, ForwardContext(len(batch)))
        cuts = [slice(at, at + self._microbatch_size) for at in range(0, len(batch), self._microbatch_size)]
        inputs = [{name: tensor[cut] for name, tensor in built.inputs.items()} for cut in cuts]
        results = self._pipeline.run(inputs)
        self._events.trigger(FORWARD_FINISHED, ForwardContext(len(batch)))
        outputs: list[RowOutput] = []
        for cut, result in zip(cuts, results, strict=True):
            rows, state = batch[cut], _cut_state(built.state, cut, len(batch))
            columns = self._task.process_outputs(rows, result, state)
            outputs += [RowOutput(index=row.row.index, columns=each) for row, each in zip(rows, columns, strict=True)]
        return outputs


def _cut_state(state: Mapping[str, Any], cut: slice, num_rows: int) -> dict[str, Any]:
    def part(value: Any) -> Any:
        return value[cut] if isinstance(value, torch.Tensor | list) and len(value) == num_rows else value

    return {name: part(value) for name, value in state.items()}
