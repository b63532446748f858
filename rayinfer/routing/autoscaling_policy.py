"""Autoscaling decision: a model's number of engines, from the load that engines and routers report."""

import math
from collections import deque
from dataclasses import dataclass

from rayinfer.routing.autoscaling_settings import AutoscalingSettings
from rayinfer.routing.first_tokens import NOTHING, WINDOW_S, FirstTokenCounts

SLACK = 0.8  # remaining engines must hold the load with so much of their capacity
MIN_LATE = 2  # one late request may be an accident
FORGET_S = 3600.0  # half-life of a learned capacity


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLoad:
    """Load of one model's engines at one moment, and of the queue in front of them."""

    num_engines: int  # that run; those that start or leave do not count
    num_running: float = 0.0  # requests in their batches
    max_num_seqs: float = 1.0  # requests that one of them may run at once
    cache_usage: float = 0.0  # their caches in use, added up: 1.5 stands for one and a half full ones
    first_tokens: FirstTokenCounts = NOTHING
    is_complete: bool = True  # whether all of them have reported; else no engine is stopped
    is_suspended: bool = False  # whether they are paused or asleep: then their number stays

    @property
    def is_idle(self) -> bool:
        """Whether there are no requests, and were none recently."""
        return not self.num_running and not self.first_tokens.num_waiting and not self.first_tokens.num_started

    @property
    def late_share(self) -> float:
        """The share of present and recent requests whose first token is late."""
        counts = self.first_tokens
        return counts.num_late / max(1, counts.num_started + counts.num_waiting)


class ScalingPolicy:
    """The target number of engines, decided anew from each report of the load.

    Scales up once the engines have been too few for `upscale_delay_s`: for the waiting prompts, the caches or batches
    in use, or the objective. Scales down once fewer engines would have held the load, with some slack, throughout the
    delay. An engine's capacity is learned from the requests that ran on each when they were too few.
    """

    def __init__(self, settings: AutoscalingSettings) -> None:
        self._settings = settings
        self._too_few_since: float | None = None
        self._steady_since: float | None = None  # since when as many engines as wanted have run
        self._last_steady = 0  # how many
        self._reports_since: float | None = None
        self._last_busy: float | None = None
        self._enough: deque[tuple[float, int]] = deque()  # falling maxima of how many would have been enough, by time
        self._learned: float | None = None  # requests that an engine ran when it could not take more
        self._learned_at = 0.0
        self.reason = ""  # of the latest decision that changed the number

    def decide(self, now_s: float, target: int, load: ModelLoad) -> int:
        """Decide how many engines there should be, where `target` are wanted at present; `now_s` is of any clock."""
        if load.is_suspended:
            self._reset()
            return self._settings.bounded(target)
        if load.num_engines == 0:
            self._reset()
            self.reason = f"{load.first_tokens.num_waiting} requests wait where there is no engine"
            return self._settings.bounded(max(target, self._needed_to_start(load.first_tokens)))
        if load.is_complete:  # engines without reports may be busy
            self._note(now_s, target, load)
        wanted = self._settings.bounded(self._needed(now_s, target, load))
        if wanted > target:
            if self._too_few_since is None:
                self._too_few_since = now_s
            if now_s - self._too_few_since < self._settings.upscale_delay_s:
                return self._settings.bounded(target)
            self._too_few_since = None
            self.reason = self._why_more(load)
            return wanted
        self._too_few_since = None
        if not load.is_complete or load.num_engines < target:
            return self._settings.bounded(target)
        enough = self._settings.bounded(min(target, self._recently_enough(now_s, target)))
        if enough < target:
            held_s = self._settings.downscale_delay_s if target > 1 else self._settings.idle_timeout_s
            self.reason = f"{enough} would have held the load of the last {held_s:g} s"
        return enough

    def _why_more(self, load: ModelLoad) -> str:
        settings, waiting = self._settings, load.first_tokens
        if self._misses_objective(load):
            late = f"{load.late_share:.0%} of first tokens came after {settings.ttft_objective_s:g} s"
            return f"{late}, {1 - settings.attainment:.0%} may"
        by_tokens = waiting.waiting_tokens / settings.target_waiting_tokens if waiting.num_waiting > 1 else 0.0
        if by_tokens >= self._engines_in_use(load) / settings.target_usage:
            return f"{waiting.waiting_tokens} prompt tokens wait, {settings.target_waiting_tokens} an engine may"
        usage = self._engines_in_use(load) / load.num_engines
        return f"engines are {usage:.0%} full, {settings.target_usage:.0%} is the target"

    def _note(self, now_s: float, target: int, load: ModelLoad) -> None:
        if self._reports_since is None:
            self._reports_since = now_s
        if not load.is_idle or self._last_busy is None:
            self._last_busy = now_s
        if load.num_engines < target:
            self._steady_since = None
        elif self._steady_since is None or self._last_steady != load.num_engines:
            self._steady_since, self._last_steady = now_s, load.num_engines
        self._learn(now_s, load)
        enough = self._enough_for(now_s, load)
        while self._enough and self._enough[-1][1] <= enough:
            self._enough.pop()
        self._enough.append((now_s, enough))
        while self._enough[0][0] < now_s - self._settings.downscale_delay_s:
            self._enough.popleft()

    def _needed(self, now_s: float, target: int, load: ModelLoad) -> int:
        """Return how many engines the present load needs."""
        settings, waiting = self._settings, load.first_tokens
        by_tokens = waiting.waiting_tokens / settings.target_waiting_tokens if waiting.num_waiting > 1 else 0.0
        needed = math.ceil(max(by_tokens, self._engines_in_use(load) / settings.target_usage))
        if self._misses_objective(load) and self._is_settled(now_s):
            needed = max(needed, target + math.ceil(target * load.late_share / 2))
        return needed

    def _needed_to_start(self, waiting: FirstTokenCounts) -> int:
        """Return how many engines to start at once where none is: each takes long to start."""
        if not waiting.num_waiting:
            return 0
        by_tokens = waiting.waiting_tokens / self._settings.target_waiting_tokens if waiting.num_waiting > 1 else 0.0
        return max(1, math.ceil(by_tokens))

    def _enough_for(self, now_s: float, load: ModelLoad) -> int:
        """Return how many engines could hold the present load with slack."""
        settings, waiting = self._settings, load.first_tokens
        if self._misses_objective(load):
            return load.num_engines
        by_tokens = waiting.waiting_tokens / settings.target_waiting_tokens if waiting.num_waiting > 1 else 0.0
        by_usage = self._engines_in_use(load) / settings.target_usage
        by_requests = load.num_running / self._capacity(now_s, load)
        return max(1, math.ceil(max(by_tokens, by_usage, by_requests) / SLACK))

    def _recently_enough(self, now_s: float, target: int) -> int:
        assert self._reports_since is not None
        assert self._last_busy is not None
        settings = self._settings
        if target <= 1:
            return 0 if now_s - self._last_busy >= settings.idle_timeout_s else 1
        if now_s - self._reports_since < settings.downscale_delay_s:
            return target
        return self._enough[0][1]

    def _engines_in_use(self, load: ModelLoad) -> float:
        return max(load.cache_usage, load.num_running / max(1.0, load.max_num_seqs))

    def _misses_objective(self, load: ModelLoad) -> bool:
        return load.first_tokens.num_late >= MIN_LATE and load.late_share > 1 - self._settings.attainment

    def _is_settled(self, now_s: float) -> bool:
        """Whether what came late came late with all engines that are wanted."""
        return self._steady_since is not None and now_s - self._steady_since >= WINDOW_S

    def _learn(self, now_s: float, load: ModelLoad) -> None:
        """Learn what an engine holds: as much as it ran when there was too much, or more if it runs more well."""
        each = load.num_running / load.num_engines
        capacity = self._capacity(now_s, load)
        if self._misses_objective(load):
            if self._is_settled(now_s) and each >= 1:
                self._learned, self._learned_at = (
                    (each if self._learned is None else (each + capacity) / 2),
                    now_s,
                )
        elif self._learned is not None and each > capacity:
            self._learned, self._learned_at = each, now_s

    def _capacity(self, now_s: float, load: ModelLoad) -> float:
        """Requests that an engine can run, as far as that is known; what was learned fades."""
        most = max(1.0, load.max_num_seqs * self._settings.target_usage)
        if self._learned is None or self._learned >= most:
            return most
        return most - (most - self._learned) * 2 ** ((self._learned_at - now_s) / FORGET_S)

    def _reset(self) -> None:
        self._too_few_since = self._steady_since = self._reports_since = self._last_busy = None
        self._enough.clear()
