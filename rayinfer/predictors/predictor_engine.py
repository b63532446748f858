"""Predictor engine: requests are items, and a step computes one batch of them to its end."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from rayinfer.engine.loop.engine_state import LifeCycle
from rayinfer.engine.loop.step_failures import may_be_one_requests_fault
from rayinfer.engine.plan.executor_commands import SleepLevel, sleep_level
from rayinfer.errors import EngineDead, InvalidParameter, RequestError
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.metrics.histogram import STEP_TOKENS, Histogram
from rayinfer.outputs import EngineStats, FinishReason, TokenDelta
from rayinfer.predictions import PredictionOutput
from rayinfer.predictors.batching import DynamicBatcher
from rayinfer.predictors.item_checks import checked_item
from rayinfer.predictors.item_outputs import OutputNotFinite, item_output
from rayinfer.predictors.predictor_request import DecodingImages, ImageSource, PredictorRequest
from rayinfer.predictors.probes import probe_item
from rayinfer.predictors.runner import Runner, RunnerResult
from rayinfer.protocols import (
    ControlAction,
    GenerationRequest,
    GetState,
    LoadAdapter,
    ModelDescription,
    Pause,
    Resume,
    Sleep,
    Wake,
)
from rayinfer.traces.request_trace import RequestTrace

logger = logging.getLogger(__name__)


class PredictorEngine:
    """Synchronous and single-threaded, with `Engine`'s interface; `AsyncEngine` runs it in a thread of its own.

    A batch that fails is computed again in halves, until the item at fault is alone and ends with an error. Where every
    item of a batch fails, a probe distinguishes a broken model from broken inputs: if that fails too, the engine ends.
    """

    def __init__(
        self,
        *,
        description: ModelDescription,
        load_runner: Callable[[], Runner],
        runner: Runner,
        batcher: DynamicBatcher[PredictorRequest],
        images: ImageSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.description = description
        self.on_plan: Callable[[int], None] = lambda num_tokens: None
        self._load_runner = load_runner
        self._runner: Runner | None = runner
        self._facts = runner  # what it says of itself is known while it is closed, too
        self._batcher = batcher
        self._images = DecodingImages(images)
        self._clock = clock
        self._life = LifeCycle()
        self._deltas: list[TokenDelta] = []  # to be returned by the next step
        self._stats = EngineStats()
        self._step_tokens = Histogram(STEP_TOKENS)
        self._finished: Counter[str] = Counter()
        self._latest_batch_size = 0

    @property
    def on_ready(self) -> Callable[[], None]:
        """What is called, from any thread, once an image is decoded."""
        return self._images.on_ready

    @on_ready.setter
    def on_ready(self, call: Callable[[], None]) -> None:
        self._images.on_ready = call

    def add_request(self, request: GenerationRequest) -> None:
        """Queue an item; raises RequestError for one that cannot be computed, EngineDead."""
        self._life.check_alive()
        if request.request_id in self._batcher or request.request_id in self._images:
            raise InvalidParameter(f"request_id {request.request_id!r} is in use", "request_id")
        item, cost = checked_item(request, self._facts), request.num_input_tokens
        deadline = None if request.timeout_s is None else self._clock() + request.timeout_s
        added = PredictorRequest(request, item, cost, deadline, RequestTrace() if request.trace else None)
        if added.trace is not None:
            added.trace.record("queued")
        if deadline is not None and self._batcher.is_too_late(cost, request.priority, deadline):
            self._end(added, "timeout")
        elif request.prediction is not None and request.prediction.image:
            self._images.add(added, request.prediction.image)
        elif item.pixels is not None and not item.is_resized:
            self._images.add(added, item.pixels)
        else:
            self._enqueue(added)

    def start_compiling(self, request: GenerationRequest) -> Future[Any] | None:
        """Return None: predictions need nothing compiled."""
        return None

    def start_reading(self, action: ControlAction) -> Future[Any] | None:
        """Return None: no action needs files."""
        return None

    def compile_grammar(self, spec: StructuredOutputsParams) -> Future[Any]:
        """Raise InvalidParameter: predictions have no grammars."""
        raise InvalidParameter(f"{self.description.name} has no structured_outputs", "structured_outputs")

    def abort(self, request_id: str) -> TokenDelta | None:
        """Abort an item that waits; None if unknown or already finished and reported."""
        for delta in self._deltas:
            if delta.request_id == request_id:
                self._deltas.remove(delta)
                return delta
        waiting = self._batcher.cancel(request_id) or self._images.cancel(request_id)
        if waiting is None:
            return None
        self._end(waiting, "abort")
        return self._deltas.pop()

    def step(self) -> list[TokenDelta]:
        """Compute one batch, unless further arrivals are waited for; while paused, only end overdue items."""
        self.check_alive()
        self._enqueue_decoded()
        self._time_out_requests()
        if self._life.is_running and self._batcher.wait_s() == 0:
            with self._recording_death():
                self._compute(self._batcher.take_batch())
        deltas, self._deltas = self._deltas, []
        return deltas

    def release_unused(self) -> None:
        """Do nothing: items leave nothing behind."""

    def check_alive(self) -> None:
        """Raise EngineDead if no step can be computed any more."""
        self._life.check_alive()

    def control(self, action: ControlAction) -> str:
        """Run an action between two steps; returns the state after it, as `Engine.control` does."""
        match action:
            case Pause():
                self._life.pause()
            case Resume():
                self._life.resume()
            case Sleep(level):
                self._life.sleep(sleep_level(level), self._free_memory)
            case Wake():
                self._life.wake(self._restore)
            case GetState():
                self._life.check_alive()
            case LoadAdapter():
                raise InvalidParameter(f"{self.description.name} generates no text and takes no adapters", "model")
        return self._life.state.value

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether items wait, or ends are yet to be returned."""
        return bool(self._batcher) or bool(self._images) or bool(self._deltas)

    @property
    def can_advance(self) -> bool:
        """Whether another step would compute items now or after `wait_s`, or return ends."""
        is_due = bool(self._batcher) or self._images.has_ready
        return bool(self._deltas) or (self._life.is_running and is_due)

    @property
    def wait_s(self) -> float:
        """Seconds to wait for further arrivals before the next step."""
        if self._deltas or not self._life.is_running or self._images.has_ready:
            return 0.0
        return self._batcher.wait_s() or 0.0

    @property
    def num_unfinished_requests(self) -> int:
        """Items that wait."""
        return len(self._batcher) + len(self._images)

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges as they are now; between two steps the next batch counts as running."""
        num_running = min(len(self._batcher), self._latest_batch_size)
        return replace(
            self._stats,
            state=self._life.state,
            num_running=num_running,
            num_waiting=self.num_unfinished_requests - num_running,
            step_tokens=self._step_tokens.counts.copy(),
            step_tokens_total=int(self._step_tokens.total),
            requests_finished_total=dict(self._finished),
        )

    def take_block_events(self) -> tuple[list[bytes], list[bytes]]:
        """Return nothing: there is no prefix cache."""
        return [], []

    def exit(self) -> None:
        """Free everything that the engine holds."""
        self._batcher.close()
        self._images.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _enqueue(self, added: PredictorRequest) -> None:
        self._batcher.add(added.name, added, cost=added.cost, priority=added.request.priority, deadline=added.deadline)

    def _enqueue_decoded(self) -> None:
        for added in self._images.take_ready():
            assert added.decoding is not None
            try:
                added.item = replace(added.item, pixels=added.decoding.result(), is_resized=True)
            except RequestError as error:
                self._fail(added, str(error))
            else:
                added.decoding = None
                self._enqueue(added)

    def _time_out_requests(self) -> None:
        for added in self._batcher.take_overdue() + self._images.take_overdue(self._clock()):
            self._end(added, "timeout")

    def _compute(self, batch: Sequence[PredictorRequest]) -> None:
        cost, started = sum(added.cost for added in batch), self._clock()
        self.on_plan(cost)
        self._latest_batch_size = len(batch)
        for added in batch:
            if added.trace is not None:
                added.trace.record("admitted")
        num_failed = self._run(batch)
        if not num_failed:
            self._batcher.record_batch(cost, self._clock() - started)
        elif num_failed == len(batch):
            self._check_model()
        self._batcher.record_free()
        self._step_tokens.observe(cost)
        self._stats.num_steps_total += 1
        self._stats.prompt_tokens_total += cost

    def _run(self, batch: Sequence[PredictorRequest]) -> int:
        """Compute items and end them; returns how many the model has failed to compute."""
        assert self._runner is not None, "a step of an engine that sleeps"
        try:
            results = self._runner.run([added.item for added in batch])
            assert len(results) == len(batch), f"{len(results)} results of {len(batch)} items"
        except Exception as error:
            if not may_be_one_requests_fault(error):
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                return self._run(batch[:middle]) + self._run(batch[middle:])
            return self._end_failed(batch[0], error)
        return sum(self._end_computed(added, result) for added, result in zip(batch, results, strict=True))

    def _end_failed(self, added: PredictorRequest, error: Exception) -> int:
        if isinstance(error, RequestError):
            self._fail(added, str(error))
            return 0
        logger.error("item %s failed", added.name, exc_info=error)
        self._fail(added, f"the model could not compute this input: {type(error).__name__}")
        return 1

    def _end_computed(self, added: PredictorRequest, result: RunnerResult) -> int:
        try:
            output = item_output(result)
        except OutputNotFinite as error:
            logger.error("item %s: %s", added.name, error)
            self._fail(added, str(error))
            return 1
        self._end(added, "stop", output)
        return 0

    def _check_model(self) -> None:
        """Compute a probe, after a batch of which nothing could be computed; raises EngineDead if that fails too."""
        probe = probe_item(self._facts, 1)
        if probe is None:
            return
        assert self._runner is not None
        try:
            item_output(self._runner.run([probe])[0])
        except Exception as error:
            raise EngineDead(f"its steps fail, whatever they compute: {type(error).__name__}") from error

    def _fail(self, added: PredictorRequest, message: str) -> None:
        self._end(added, "error", PredictionOutput(error=message))

    def _end(self, added: PredictorRequest, reason: FinishReason, output: PredictionOutput | None = None) -> None:
        self._finished[reason] += 1
        events = None
        if added.trace is not None:
            added.trace.record("finished", reason=reason, output_tokens=0)
            events = added.trace.in_order()
        self._deltas.append(TokenDelta(added.name, 0, [], finish_reason=reason, trace=events, prediction=output))

    @contextlib.contextmanager
    def _recording_death(self) -> Iterator[None]:
        try:
            yield
        except EngineDead as error:
            self._life.die(error)
            raise

    def _free_memory(self, level: SleepLevel) -> None:
        if level is SleepLevel.RECOMPUTE and self._runner is not None:
            self._runner.close()
            self._runner = None

    def _restore(self, level: SleepLevel) -> None:
        if self._runner is None:
            self._runner = self._load_runner()
