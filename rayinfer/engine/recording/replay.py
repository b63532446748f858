"""Repetition of a recorded schedule on an engine, up to the first difference."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.plan.step_plan import SampledTokens, StepPlan
from rayinfer.engine.recording.events import (
    Aborted,
    Added,
    Controlled,
    Event,
    Header,
    Planned,
    Sampled,
    Stepped,
    TimeRead,
    read_events,
)
from rayinfer.errors import RayinferError, RequestError
from rayinfer.protocols import ControlAction, GenerationRequest

Expected = TypeVar("Expected", bound=Event)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first place where a repetition is not as recorded."""

    step: int
    what: str
    recorded: str
    repeated: str
    request_id: str = ""
    recorded_token: int | None = None
    repeated_token: int | None = None


class ScheduleDiffers(RayinferError):
    """A repetition that is not as recorded from here on."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(f"step {difference.step}: {difference.what}")
        self.difference = difference


class RecordingEnds(RayinferError):
    """A recording that was cut off within a step."""


class ScheduleReplay:
    """Events of a file, which an engine is driven by and compared with."""

    def __init__(self, path: Path) -> None:
        """Read the header; raises ConfigError."""
        self._events = read_events(path)
        header = next(self._events)
        assert isinstance(header, Header)
        self.header = header
        self.num_steps = 0
        self.num_tokens = 0
        self._step = 0
        self._request_of: dict[int, str] = {}  # by row

    def run(self, engine: Engine, on_step: Callable[[int], None] = lambda _: None) -> Difference | None:
        """Drive the engine, whose recorder and clock are this one; returns the first difference."""
        try:
            for event in self._events:
                if isinstance(event, Stepped):
                    self.num_steps += 1
                    on_step(self.num_steps)
                self._drive(engine, event)
        except ScheduleDiffers as error:
            return error.difference
        except RecordingEnds:
            return None
        return None

    def clock(self) -> float:
        """Return what the recorded engine read here."""
        return self._next(TimeRead, "the clock is read").now_s

    def added(self, request: GenerationRequest) -> None:
        """Do nothing: it comes from here."""

    def aborted(self, request_id: str) -> None:
        """Do nothing: it comes from here."""

    def controlled(self, action: ControlAction) -> None:
        """Do nothing: it comes from here."""

    def stepped(self) -> None:
        """Do nothing: it comes from here."""

    def close(self) -> None:
        """Do nothing: the file ends itself."""

    def planned(self, plan: StepPlan, request_ids: list[str]) -> None:
        """Compare a plan; raises ScheduleDiffers."""
        self._step = plan.step
        recorded, repeated = self._next(Planned, "a step is planned"), Planned.of(plan, request_ids)
        self._request_of.update(zip(repeated.rows.tolist(), request_ids, strict=True))
        for mine, theirs in zip_longest(_parts(recorded), _parts(repeated)):
            if mine != theirs:
                request_id = (mine or theirs)[0]
                self._differ("the plan differs", _shown(mine), _shown(theirs), request_id)
        if recorded.step != repeated.step:
            self._differ("the plan has another number", str(recorded.step), str(repeated.step))
        if recorded.blocks != repeated.blocks:
            self._differ("KV blocks differ", recorded.blocks.hex(), repeated.blocks.hex())

    def sampled(self, plan: StepPlan, tokens: SampledTokens) -> None:
        """Compare the tokens of a plan; raises ScheduleDiffers."""
        self._step = plan.step
        recorded, repeated = self._next(Sampled, "tokens come"), Sampled.of(plan, tokens)
        for row, mine, theirs in zip(
            repeated.rows.tolist(), recorded.token_ids.tolist(), repeated.token_ids.tolist(), strict=False
        ):
            if mine != theirs:
                self._differ(
                    *("a token differs", str(mine), str(theirs), self._request_of.get(row, "")),
                    recorded_token=mine,
                    repeated_token=theirs,
                )
        if recorded.rows.tolist() != repeated.rows.tolist():
            self._differ("other rows sampled", str(recorded.rows.tolist()), str(repeated.rows.tolist()))
        self.num_tokens += len(repeated.token_ids)

    def _drive(self, engine: Engine, event: Header | Event) -> None:
        match event:
            case Added(request):
                with contextlib.suppress(RequestError):  # it was refused then
                    engine.add_request(request)
            case Aborted(request_id):
                engine.abort(request_id)
            case Controlled():
                engine.control(event.as_action())
            case Stepped():
                engine.step()
            case _:
                self._differ("the engine has nothing to do", _named(event), "nothing")

    def _next(self, kind: type[Expected], what: str) -> Expected:
        event = next(self._events, None)
        if event is None:
            raise RecordingEnds("the recording ends within a step")
        if not isinstance(event, kind):
            self._differ(f"{what} where the recording has something else", _named(event), kind.__name__.lower())
        return event

    def _differ(self, what: str, recorded: str, repeated: str, request_id: str = "", **tokens: Any) -> NoReturn:
        raise ScheduleDiffers(
            Difference(
                step=self._step, what=what, recorded=recorded, repeated=repeated, request_id=request_id, **tokens
            )
        )


def _parts(plan: Planned) -> Iterator[tuple[str, int, int, int, list[int]]]:
    """Yield each request's part: its id, row, first position, number of tokens and token ids."""
    token_ids, end = plan.token_ids.tolist(), 0
    for request_id, row, start, count in zip(
        plan.request_ids, plan.rows.tolist(), plan.starts.tolist(), plan.counts.tolist(), strict=True
    ):
        yield request_id, row, start, count, token_ids[end : end + count]
        end += count


def _shown(part: tuple[str, int, int, int, list[int]] | None) -> str:
    if part is None:
        return "not in this step"
    request_id, row, start, count, token_ids = part
    return f"{request_id} in row {row}: {count} tokens from position {start}, {token_ids[:8]}"


def _named(event: Header | Event) -> str:
    return type(event).__name__.lower()
