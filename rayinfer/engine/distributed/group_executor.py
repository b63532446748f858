"""Rank 0's executor: sends every command to the other ranks and runs its own part of it."""

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from rayinfer.engine.plan.executor import Executor, StepHandle
from rayinfer.engine.plan.executor_commands import BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan
from rayinfer.engine.ranks.control_connection import ControlLine, LineLost, framed, hung_up
from rayinfer.engine.ranks.pipeline_link import PipelineLink
from rayinfer.engine.ranks.plan_codec import (
    AnyMessage,
    BadMessage,
    Computed,
    Done,
    End,
    Failed,
    Restore,
    copy_message,
    plan_message,
    read_sampled,
    release_message,
)
from rayinfer.engine.ranks.rank_failures import LAST_WORDS_S, failed, lost, rank_that_hung_up
from rayinfer.engine.ranks.rank_group import RankGroup, own_cause
from rayinfer.engine.ranks.rendezvous import START_TIMEOUT_S
from rayinfer.engine.ranks.timed_group import StageTimes
from rayinfer.engine.ranks.torch_groups import STEP_TIMEOUT_S
from rayinfer.errors import EngineDead

LOOK_ROUND_S = 0.25  # between two looks at the lines of an idle engine
END_GRACE_S = 5.0  # for ranks to end on command


class GroupExecutor:
    """An Executor over several ranks, which live and die together.

    Nothing that fails here is tried again: after a failure the ranks' states are unknown. The first one ends the
    group, and everything afterwards raises EngineDead with its cause. A rank that has gone or is frozen is noticed in a
    step as well as between two.
    """

    def __init__(
        self,
        group: RankGroup,
        part: Executor,
        end_ranks: Callable[[float], None] = lambda grace_s: None,
        link: PipelineLink | None = None,
    ) -> None:
        self.supports_async_scheduling = False
        self.max_concurrent_batches = min(2, group.place.pipeline_parallel_size)
        self.stage_times = StageTimes(group.place.pipeline_parallel_size)
        self._group = group
        self._own_part: Executor | None = part  # until the end
        self._end_ranks = end_ranks
        self._link = link  # the part's, to the other stages
        self._lock = threading.RLock()  # one command at a time, all ranks in the same order
        self._under_way: deque[StepUnderWay] = deque()
        self._death: EngineDead | None = None
        self._is_over = False
        self._at_the_end = weakref.finalize(self, end_ranks, END_GRACE_S)  # also when it is garbage collected
        lose = weakref.WeakMethod(self._lose)
        group.on_loss = lambda: (it := lose()) and it()
        threading.Thread(target=_keep_company, args=(weakref.ref(self),), name="ranks", daemon=True).start()

    @property
    def stage_idle_shares(self) -> list[float]:
        """See Executor."""
        if self._group.place.pipeline_parallel_size == 1:
            return []
        return self.stage_times.idle_shares(time.perf_counter())

    @property
    def communication_s(self) -> float:
        """Seconds that rank 0 has spent so far in what its stage's ranks do together."""
        return self._group.communication_s

    def submit(self, plan: StepPlan) -> StepHandle:
        """Start a step; its tokens are here when rank 0 is in the last stage, or else come when they are ready."""
        with self._command():
            waited_s, now = self._waiting_s, time.perf_counter()
            self.stage_times.start(now)
            self._tell(plan_message(plan))
            own = self._part.submit(plan)
            if self._group.place.pipeline_parallel_size == 1:
                self.stage_times.stop(time.perf_counter())
                return own
            self.stage_times.add(0, time.perf_counter() - now - (self._waiting_s - waited_s))
            step = StepUnderWay(self)
            self._under_way.append(step)
            return step

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Have every rank copy its part of the blocks."""
        with self._command():
            self._tell(copy_message(copy))
            self._part.copy_blocks(copy)

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int]) -> None:
        """Have every rank give its memory back."""
        with self._command():
            self._tell(release_message(level, blocks_in_use))
            self._part.release(level, blocks_in_use)
            self._await_done()

    def restore(self, level: SleepLevel) -> None:
        """Have every rank take its memory again."""
        with self._command():
            self._tell(Restore(int(level)))
            self._part.restore(level)
            self._await_done()

    def check(self) -> None:
        """Raise EngineDead once a rank is gone."""
        if self._death is not None:
            raise EngineDead(str(self._death))

    def shutdown(self) -> None:
        """Let every rank end, and wait until they have."""
        with self._lock:
            with contextlib.suppress(EngineDead):
                while self._under_way and self._death is None:
                    self.take_result(self._under_way[0])
            self._is_over = True
            for line in self._group.lines:
                with contextlib.suppress(LineLost):
                    line.send(End(), LAST_WORDS_S)
            self._group.close()
            if self._own_part is not None:
                self._own_part.shutdown()
            self._own_part = self._link = None  # which keep torch's groups, and those the ports they listen at
        self._at_the_end()

    # One command

    @contextlib.contextmanager
    def _command(self) -> Iterator[None]:
        with self._lock:
            self.check()
            try:
                yield
                if self._group.was_aborted:
                    raise EngineDead("the wait for another rank was broken off")
            except BaseException as error:
                # Even an interruption: the others are in the middle of what this rank has left.
                self._die(error)
                if isinstance(error, Exception):
                    self.check()
                raise

    def _tell(self, message: AnyMessage) -> None:
        frame = framed(message)
        for rank, line in enumerate(self._group.lines, start=1):
            try:
                line.send_bytes(frame, STEP_TIMEOUT_S)
            except LineLost as error:
                raise lost(rank, error) from None

    def _await_done(self) -> None:
        for rank, line in enumerate(self._group.lines, start=1):
            while isinstance(said := self._hear(rank, line, START_TIMEOUT_S), Computed):
                self._keep(rank, said)
            _expect(isinstance(said, Done), rank, said)

    def _hear(self, rank: int, line: ControlLine, timeout_s: float) -> AnyMessage:
        try:
            said = line.receive(timeout_s)
        except (LineLost, BadMessage) as error:
            raise lost(rank, error) from None
        if isinstance(said, Failed):
            raise failed(rank, said)
        return said

    @property
    def _part(self) -> Executor:
        if self._own_part is None:
            raise EngineDead("the engine has ended")
        return self._own_part

    @property
    def _waiting_s(self) -> float:
        return 0.0 if self._link is None else self._link.waiting_s

    # Steps under way in later stages

    def take_result(self, step: "StepUnderWay") -> SampledTokens:
        """Wait for a step, and for those before it."""
        with self._command():
            while step.sampled is None:
                self._finish_oldest()
            return step.sampled

    def _finish_oldest(self) -> None:
        """Receive the oldest step's results from the first tensor rank of every later stage."""
        place = self._group.place
        oldest = self._under_way[0]
        for stage in range(1, place.pipeline_parallel_size):
            rank = stage * place.tensor_parallel_size
            if stage not in oldest.computed:
                said = self._hear(rank, self._group.lines[rank - 1], STEP_TIMEOUT_S)
                _expect(isinstance(said, Computed), rank, said)
                self._keep(rank, said)
        self._under_way.popleft()
        oldest.sampled = read_sampled(oldest.computed[place.pipeline_parallel_size - 1])
        if not self._under_way:
            self.stage_times.stop(time.perf_counter())

    def _keep(self, rank: int, computed: AnyMessage) -> None:
        assert isinstance(computed, Computed)
        stage = rank // self._group.place.tensor_parallel_size
        step = next(step for step in self._under_way if stage not in step.computed)
        step.computed[stage] = computed
        self.stage_times.add(stage, computed.busy_s)

    # The end

    def note_hang_up(self) -> None:
        """A line is closed at its other end; between two commands that is a failure like any other."""
        self._group.abort_device_waits()
        with self._lock, contextlib.suppress(EngineDead), self._command():
            if (loss := rank_that_hung_up(self._group.lines, 1, 0.0)) is not None:
                raise loss

    def _lose(self) -> None:
        """End all ranks at once: waits in gloo end when the hung rank's process is gone."""
        if self._death is None and not self._is_over:
            self._death = EngineDead(f"a rank of the engine failed: {self._group.loss}")
            self._end_ranks(0.0)

    def _die(self, error: BaseException) -> None:
        if self._is_over:
            return
        if self._death is None:
            cause = self._group.cause_of(error) if isinstance(error, Exception) else own_cause(error)
            self._death = EngineDead(f"a rank of the engine failed: {cause}")
        self._group.close()
        self._end_ranks(LAST_WORDS_S)

    @property
    def lines(self) -> list[ControlLine] | None:
        """The connections to watch; None once the group is over."""
        return None if self._is_over or self._death is not None else self._group.lines


class StepUnderWay:
    """The handle of a step that later stages have yet to compute."""

    def __init__(self, executor: GroupExecutor) -> None:
        self._executor = executor
        self.computed: dict[int, Computed] = {}  # by stage
        self.sampled: SampledTokens | None = None

    def result(self) -> SampledTokens:
        """Wait for the step's tokens; raises EngineDead."""
        return self._executor.take_result(self)


def _keep_company(reference: "weakref.ref[GroupExecutor]") -> None:
    """Watch the connections in a thread, with a weak reference to the executor."""
    while (executor := reference()) is not None and (lines := executor.lines) is not None:
        del executor
        has_hung_up = hung_up(lines, LOOK_ROUND_S)
        if (executor := reference()) is None:
            return
        if has_hung_up:
            executor.note_hang_up()
        del executor


def _expect(is_expected: bool, rank: int, said: AnyMessage) -> None:
    if not is_expected:
        raise EngineDead(f"rank {rank} says {type(said).__name__}, which nobody asked for")
