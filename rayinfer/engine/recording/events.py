"""Events of a recorded schedule, and their file: framed MessagePack, one event a frame."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rayinfer.engine.plan.step_plan import BoolArray, Int32Array, Int64Array, SampledTokens, StepPlan
from rayinfer.errors import ConfigError
from rayinfer.protocols import ControlAction, GenerationRequest, Pause, Resume, Sleep, Wake
from rayinfer.wire import LENGTH_BYTES, BadMessage, decode, decoder_of, frame_bytes

VERSION = 1
SUFFIX = ".schedule"


class Header(msgspec.Struct, tag="header", frozen=True, kw_only=True):
    """Begin of a file: the settings of the engine."""

    version: int
    rayinfer: str  # its version
    config: dict[str, Any]


class Added(msgspec.Struct, tag="added", frozen=True):
    """A request that came."""

    request: GenerationRequest


class Aborted(msgspec.Struct, tag="aborted", frozen=True):
    """A request that was aborted."""

    request_id: str


class Controlled(msgspec.Struct, tag="controlled", frozen=True):
    """An action between two steps."""

    action: str
    level: int = 1  # of sleep

    def as_action(self) -> ControlAction:
        """Return the action."""
        actions: dict[str, ControlAction] = {
            "pause": Pause(),
            "resume": Resume(),
            "sleep": Sleep(self.level),
            "wake": Wake(),
        }
        return actions[self.action]


class Stepped(msgspec.Struct, tag="stepped", frozen=True):
    """Begin of a step."""


class TimeRead(msgspec.Struct, tag="time", frozen=True):
    """A reading of the engine's clock, on which deadlines and the order of requests depend."""

    now_s: float


class Planned(msgspec.Struct, tag="planned", frozen=True, kw_only=True):
    """A step's plan: which tokens of which requests, and where their keys and values go."""

    step: int
    request_ids: list[str]
    rows: Int64Array
    counts: Int32Array  # tokens of each request
    starts: Int64Array  # position of the first of them
    token_ids: Int32Array  # 0 where a token was still in flight
    blocks: bytes  # digest of the slots

    @classmethod
    def of(cls, plan: StepPlan, request_ids: list[str]) -> "Planned":
        """Shorten a plan to what two schedules are compared by."""
        counts = np.diff(plan.cu_seqlens_q).astype(np.int32)
        token_ids = plan.token_ids.copy()
        if plan.uses_last_sampled is not None:
            token_ids[plan.cu_seqlens_q[1:][plan.uses_last_sampled] - 1] = 0
        return cls(
            step=plan.step,
            request_ids=request_ids,
            rows=plan.rows,
            counts=counts,
            starts=plan.positions[plan.cu_seqlens_q[:-1]],
            token_ids=token_ids,
            blocks=hashlib.blake2b(plan.slot_mapping.tobytes(), digest_size=8).digest(),
        )


class Sampled(msgspec.Struct, tag="sampled", frozen=True, kw_only=True):
    """The new tokens of a plan's requests, in the plan's order."""

    step: int
    rows: Int64Array  # of the requests that sampled, one for each token
    token_ids: Int64Array
    is_invalid: BoolArray

    @classmethod
    def of(cls, plan: StepPlan, tokens: SampledTokens) -> "Sampled":
        """Take the tokens without log probabilities."""
        rows = plan.rows[plan.samples]
        if tokens.counts is not None:
            rows = np.repeat(rows, tokens.counts)
        return cls(step=plan.step, rows=rows, token_ids=tokens.token_ids, is_invalid=tokens.is_invalid)


Event = Added | Aborted | Controlled | Stepped | TimeRead | Planned | Sampled

_EVENTS = decoder_of(Header | Event)


def read_events(path: Path) -> Iterator[Header | Event]:
    """Yield the header and the events of a file; one that was cut off ends with its last whole event.

    Raises ConfigError for a file that is none of these.
    """
    with path.open("rb") as file:
        is_first = True
        while len(head := file.read(LENGTH_BYTES)) == LENGTH_BYTES:
            try:
                length = frame_bytes(head) - LENGTH_BYTES
                if len(data := file.read(length)) < length:
                    return
                event: Header | Event = decode(_EVENTS, data)
            except BadMessage as error:
                raise ConfigError(f"{path} is not a recorded schedule: {error}") from None
            if is_first and (not isinstance(event, Header) or event.version != VERSION):
                raise ConfigError(f"{path} is not a recorded schedule of version {VERSION}")
            is_first = False
            yield event
        if is_first:
            raise ConfigError(f"{path} is not a recorded schedule: it is empty")
