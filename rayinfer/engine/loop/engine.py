"""Synchronous engine: accepts requests, computes them step by step, and returns their new tokens."""

import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from rayinfer.engine.loop.engine_adapters import EngineAdapters, HostAdapterLimits
from rayinfer.engine.loop.engine_images import EngineImages
from rayinfer.engine.loop.engine_state import LifeCycle
from rayinfer.engine.loop.interrupts import interrupts_deferred
from rayinfer.engine.loop.request_needs import start_needs
from rayinfer.engine.loop.schedule_recorder import ScheduleRecorder
from rayinfer.engine.loop.step_failures import may_be_one_requests_fault
from rayinfer.engine.plan.executor import Executor, StepHandle
from rayinfer.engine.plan.executor_commands import SleepLevel, sleep_level
from rayinfer.engine.plan.step_plan import Int32Array, SampledTokens, StepPlan
from rayinfer.engine.scheduling.request import Request, new_request
from rayinfer.engine.scheduling.request_checks import checked_token_ids
from rayinfer.engine.scheduling.scheduler import Scheduler
from rayinfer.engine.worker.images.image_encoder import ImageEncoder
from rayinfer.errors import EngineDead, InvalidParameter
from rayinfer.grammars.compiler import CompiledGrammar, GrammarCompiler
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.outputs import EngineStats, FinishReason, TokenDelta
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

logger = logging.getLogger(__name__)


class Engine:
    """Synchronous and single-threaded; `AsyncEngine` runs it in a thread of its own."""

    def __init__(
        self,
        *,
        description: ModelDescription,
        scheduler: Scheduler,
        executor: Executor,
        grammars: GrammarCompiler | None = None,
        images: ImageEncoder | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        recorder: ScheduleRecorder | None = None,
        stored_blocks: StoredBlocks | None = None,
        host_adapters: HostAdapterLimits | None = None,
    ) -> None:
        self.description = description
        self.scheduler = scheduler
        self._executor = executor
        self._grammars = grammars
        self._images = EngineImages(images, description)
        self._seeds = random.Random(seed)  # for requests without one
        self._clock = clock
        self._recorder = recorder
        self._life = LifeCycle()
        slots = scheduler.batch.adapters
        self._adapters = None if host_adapters is None else EngineAdapters(executor, host_adapters, slots)
        if self._adapters is not None:
            self._adapters.on_read = lambda: self.on_ready()
        self.stored_blocks = stored_blocks  # of the machine's store, with `kv_transfer`
        self.on_plan: Callable[[int], None] = lambda num_tokens: None  # called with the number of tokens of a step
        self.on_ready: Callable[[], None] = lambda: None  # steps wait for nothing but their own results
        self.wait_s = 0.0  # a step is never delayed
        self._in_flight: deque[tuple[StepPlan, StepHandle]] = deque()  # steps, oldest first
        self._deltas: list[TokenDelta] = []  # of the current step: kept over an interruption

    def add_request(self, request: GenerationRequest) -> None:
        """Queue a request with n == 1; raises RequestError for one that could never finish, EngineDead."""
        self._life.check_alive()
        if self._recorder is not None:
            self._recorder.added(request)
        if self.scheduler.knows(request.request_id):
            raise InvalidParameter(f"request_id {request.request_id!r} is in use", "request_id")
        grammar = self._compiled_grammar(request)
        checked = self._checked_request(request)
        checked.grammar = grammar
        checked.images = self._images.placed(request, checked.token_ids[: checked.prompt_len])
        self.scheduler.add(checked)

    @property
    def adapters(self) -> EngineAdapters:
        """The adapters in memory; raises InvalidParameter where the engine takes none."""
        if self._adapters is None:
            raise InvalidParameter(f"{self.description.name} takes no adapters: set enable_lora", "model")
        return self._adapters

    def prepare_grammars(self) -> None:
        """Read what the first grammar needs, beside other work: it takes a part of a second without a step."""
        if self._grammars is not None:
            self._grammars.prepare()

    def start_compiling(self, request: GenerationRequest) -> Future[Any] | None:
        """Start to compile the request's grammar, to encode its images, to read its adapter; None if all is there.

        Raises RequestError for images of a request that could never finish: nothing is encoded for it.
        """
        return start_needs(request, self._grammars, self._images, self._adapters)

    def start_reading(self, action: ControlAction) -> Future[Any] | None:
        """Start to read the adapter that an action loads, beside the steps; None if the action needs nothing."""
        if not isinstance(action, LoadAdapter) or self._adapters is None:
            return None
        return self._adapters.start_reading(action.folder)

    def compile_grammar(self, spec: StructuredOutputsParams) -> Future[CompiledGrammar]:
        """Start to compile a grammar beside the steps, from any thread; raises InvalidParameter without grammars."""
        return self._compiler().start(spec)

    def abort(self, request_id: str) -> TokenDelta | None:
        """Abort a request and free what it holds; None if unknown or already finished and reported."""
        if self._recorder is not None:
            self._recorder.aborted(request_id)
        unreported = [delta for delta in self._deltas if delta.request_id == request_id]
        if unreported:  # of steps that finished as the engine fell asleep
            self._deltas = [delta for delta in self._deltas if delta.request_id != request_id]
        ended = self.scheduler.finish(request_id, "abort")
        self._evict_adapters()
        if ended is None or not unreported:
            return ended or (unreported[-1] if unreported else None)
        return ended._replace(start_pos=unreported[0].start_pos)

    def step(self) -> list[TokenDelta]:
        """Compute a step of all scheduled requests, or start the next and finish one; paused: only end overdue ones."""
        self.check_alive()
        if self._recorder is not None:
            self._recorder.stepped()
        self._time_out_requests()
        with self._recording_death():
            while self._can_plan:
                plan = None
                try:
                    with interrupts_deferred():
                        plan = self.scheduler.plan()
                    if plan is None:
                        break
                    self.on_plan(plan.num_tokens)
                    self._copy_blocks()
                    self._start(plan)
                except BaseException:
                    if plan is not None:
                        self.scheduler.reschedule(plan)
                    raise
                if not self._in_flight:  # it is computed
                    break
            self._finish_oldest()
        self._evict_adapters()
        deltas, self._deltas = self._deltas, []
        return deltas

    def release_unused(self) -> None:
        """Free memory that no request needs any more, once all that has waited for its adapter was added."""
        if self._adapters is not None:
            with self._recording_death():
                self._adapters.release_unused()

    def _evict_adapters(self) -> None:
        if self._adapters is not None:
            with self._recording_death():
                self._adapters.evict()

    def check_alive(self) -> None:
        """Raise EngineDead if no step can be computed any more."""
        self._life.check_alive()
        with self._recording_death():
            self._executor.check()

    def control(self, action: ControlAction) -> str:
        """Run an action between two steps; returns the state after it, or the digest of a loaded adapter.

        Raises WrongEngineState where the action is refused in this state, InvalidParameter for an unknown level, and
        EngineDead for an engine that is dead, or dies of the action.
        """
        if self._recorder is not None:
            self._recorder.controlled(action)
        match action:
            case Pause():
                self._life.pause()
            case Resume():
                self._life.resume()
            case Sleep(level):
                level = sleep_level(level)
                with self._recording_death():
                    self._finish_all()
                self._life.sleep(level, self._free_memory)
            case Wake():
                self._life.wake(self._executor.restore)
            case GetState():
                self._life.check_alive()
            case LoadAdapter(folder):
                self._life.check_alive()
                with self._recording_death():
                    return self.adapters.load(folder).digest
        return self._life.state.value

    def check_running(self, wanted: str) -> None:
        """Raise WrongEngineState, or EngineDead, unless steps are planned."""
        self._life.check_running(wanted)

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether requests wait or run, a step is in flight, or its results are yet to be returned."""
        return self.scheduler.num_unfinished > 0 or bool(self._in_flight) or bool(self._deltas)

    @property
    def can_advance(self) -> bool:
        """Whether another step would advance a request, or return results of an earlier one."""
        return (
            bool(self._in_flight) or bool(self._deltas) or (self._life.is_running and self.scheduler.num_unfinished > 0)
        )

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that wait or run."""
        return self.scheduler.num_unfinished

    @property
    def stats(self) -> EngineStats:
        """Counters and gauges as they are now."""
        stats = self.scheduler.stats
        stats.state = self._life.state
        stats.stage_idle_shares = list(self._executor.stage_idle_shares)
        if self._adapters is not None:
            self._adapters.report(stats)
        stats.images = self._images.stats
        return stats

    @property
    def executor(self) -> Executor:
        """The executor that runs its steps, for measurements."""
        return self._executor

    def take_block_events(self) -> tuple[list[bytes], list[bytes]]:
        """Return the hashes added to and removed from the prefix cache since the last call."""
        events = self.scheduler.take_block_events()
        return events.stored, events.removed

    def exit(self) -> None:
        """Free everything that the engine holds."""
        if self.stored_blocks is not None:
            self.stored_blocks.close()  # before the store, which frees memory that nothing uses
        self.scheduler.close()
        self._executor.shutdown()
        if self._recorder is not None:
            self._recorder.close()
        if self._grammars is not None:
            self._grammars.close()
        self._images.close()

    def _compiled_grammar(self, request: GenerationRequest) -> CompiledGrammar | None:
        spec = request.sampling_params.structured_outputs
        if spec is None:
            return None
        return self._compiler().compile(spec)

    def _compiler(self) -> GrammarCompiler:
        if self._grammars is None:
            raise InvalidParameter(f"{self.description.name} has no structured_outputs", "structured_outputs")
        return self._grammars

    def _checked_request(self, request: GenerationRequest, source_token_ids: Int32Array | None = None) -> Request:
        return new_request(
            request,
            checked_token_ids(request, self.description),
            source_token_ids=source_token_ids,
            seed=self._seeds.getrandbits(64),
            max_model_len=self.description.max_model_len,
            block_size=self.description.block_size,
            eos_token_ids=self.description.eos_token_ids,
            now=self._clock(),
            weights_version=self.description.weights_version,
            adapter=self._adapter_of(request),
        )

    def _adapter_of(self, request: GenerationRequest) -> str | None:
        """Bring the request's adapter to memory, and return its digest."""
        if request.adapter is None:
            return None
        with self._recording_death():
            return self.adapters.use(request.adapter, request.adapter_folder)

    @property
    def _can_plan(self) -> bool:
        return self._life.is_running and len(self._in_flight) < self._executor.max_concurrent_batches

    def _start(self, plan: StepPlan) -> None:
        if self._recorder is not None:
            self._recorder.planned(plan, [self.scheduler.request_id_at(row) for row in plan.rows.tolist()])
        if self._executor.max_concurrent_batches == 1:
            self._run(plan)
            return
        try:
            self._in_flight.append((plan, self._executor.submit(plan)))
            return
        except Exception as error:
            if not may_be_one_requests_fault(error):
                raise
            logger.info("step %d failed beside an in-flight one and is computed again: %s", plan.step, error)
        self._finish_all()
        self._run(self.scheduler.retract(plan), has_failed=True)

    def _finish_all(self) -> None:
        """Read the tokens of all in-flight steps."""
        while self._in_flight:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        """Read the tokens of the oldest in-flight step, if there is one."""
        if self._in_flight:
            plan, step = self._in_flight[0]
            self.on_plan(plan.num_tokens)  # the watchdog's limit is this step's
            sampled = step.result()
            with interrupts_deferred():
                self._in_flight.popleft()
                self._apply(plan, sampled)

    @contextlib.contextmanager
    def _recording_death(self) -> Iterator[None]:
        try:
            yield
        except EngineDead as error:
            self._in_flight.clear()
            self._life.die(error)
            raise

    def _run(self, plan: StepPlan, *, has_failed: bool = False) -> None:
        """Compute the plan; if it fails, compute its halves, until the request at fault is alone and ends with "error".

        A request that was alone from the start is tried twice, too: what failed may have been the moment's fault.
        Drafts are not. Nothing needs undoing: a failed step has written only to slots that the retry writes again.
        """
        if not plan.num_requests:  # all its requests have left
            return
        failure: Exception | None = None
        try:
            sampled = self._executor.submit(plan).result()
        except Exception as error:
            if not may_be_one_requests_fault(error):
                raise
            failure = error
            plan = plan.without_drafts()
        if failure is None:
            with interrupts_deferred():
                self._apply(plan, sampled)
        elif plan.num_requests > 1:
            middle = plan.num_requests // 2
            self._run(plan.part(0, middle), has_failed=True)
            self._run(plan.part(middle, plan.num_requests), has_failed=True)
        elif not has_failed:
            logger.info("step %d failed and is computed again: %s", plan.step, failure)
            self._run(plan, has_failed=True)
        else:
            request_id = self.scheduler.request_id_at(int(plan.rows[0]))
            logger.error("request %s failed in step %d", request_id, plan.step, exc_info=failure)
            self._finish(request_id, "error")

    def _apply(self, plan: StepPlan, sampled: SampledTokens) -> None:
        if self._recorder is not None:
            self._recorder.sampled(plan, sampled)
        self._deltas += self.scheduler.apply(plan, sampled)

    def _copy_blocks(self) -> None:
        """Make the copies that the scheduler has queued, in their order."""
        copies = self.scheduler.block_copies
        while copies:
            self._executor.copy_blocks(copies[0])
            copies.popleft()

    def _free_memory(self, level: SleepLevel) -> None:
        if level is SleepLevel.RECOMPUTE:
            self.scheduler.drop_computed()
            self._images.release()
        elif level is SleepLevel.OFFLOAD:
            self._copy_blocks()
            self.scheduler.forget_cached_prefixes()
        self._executor.release(level, self.scheduler.blocks_in_use, self.scheduler.window_pages_in_use)

    def _time_out_requests(self) -> None:
        for request_id in self.scheduler.take_overdue(self._clock()):
            self._finish(request_id, "timeout")

    def _finish(self, request_id: str, reason: FinishReason) -> None:
        delta = self.scheduler.finish(request_id, reason)
        if delta is not None:
            self._deltas.append(delta)
