"""Messages between the ranks of an engine: plans, results and failures, as MessagePack with raw arrays.

Both ends check what they read against the types that are named here; nothing that is read can run as code.
"""

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from rayinfer.engine.plan.executor_commands import BlockCopy
from rayinfer.engine.plan.step_plan import LogprobsArrays, NewRequestData, SampledTokens, StepPlan
from rayinfer.engine.ranks.rendezvous_messages import Challenge, Hello, Numbers, StoreAnswer, StoreCall, Welcome
from rayinfer.errors import RayinferError
from rayinfer.sampling_params import SamplingParams

Scalar = TypeVar("Scalar", bound=np.generic)


class BadMessage(RayinferError):
    """A message from another rank that cannot be decoded."""


# Commands of rank 0, in the order in which every rank runs them


class RunPlan(msgspec.Struct, tag="plan", array_like=True, frozen=True):
    """A step; arrays are the bytes of those of StepPlan."""

    step: int
    rows: bytes
    token_ids: bytes
    positions: bytes
    slot_mapping: bytes
    cu_seqlens_q: bytes
    seq_lens: bytes
    block_tables: bytes
    samples: bytes
    new_requests: list["Entered"]


class Entered(msgspec.Struct, tag="entered", array_like=True, frozen=True):
    """An NewRequestData."""

    row: int
    params: SamplingParams
    seed: int
    choice: int
    prompt_token_ids: bytes
    output_token_ids: bytes
    end_token_ids: tuple[int, ...]
    last_position: int | None
    source_token_ids: bytes | None


class CopyBlocks(msgspec.Struct, tag="copy", array_like=True, frozen=True):
    """A BlockCopy."""

    direction: Literal["out", "in"]
    source_blocks: list[int]
    target_blocks: list[int]


class Release(msgspec.Struct, tag="release", array_like=True, frozen=True):
    """Give memory back; acknowledged when done."""

    level: int
    blocks_in_use: list[int]


class Restore(msgspec.Struct, tag="restore", array_like=True, frozen=True):
    """Take memory again; acknowledged when done."""

    level: int


class End(msgspec.Struct, tag="end", array_like=True, frozen=True):
    """Nothing more will come."""


# At all times, in both directions, on a line of its own


class Beat(msgspec.Struct, tag="beat", array_like=True, frozen=True):
    """A heartbeat, whatever the rank computes."""


# Answers to rank 0


class Done(msgspec.Struct, tag="done", array_like=True, frozen=True):
    """A command other than a plan is carried out."""


class Computed(msgspec.Struct, tag="computed", array_like=True, frozen=True):
    """A later stage has computed a plan; the last one brings its tokens."""

    busy_s: float  # without waiting for the stage before it
    token_ids: bytes = b""
    is_invalid: bytes = b""
    logprobs: "Scored | None" = None
    prompt_logprobs: "Scored | None" = None


class Scored(msgspec.Struct, tag="scored", array_like=True, frozen=True):
    """ScoredTokens."""

    rows: bytes
    positions: bytes
    token_ids: bytes
    logprobs: bytes
    ranks: bytes


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """A rank's final message: the reason why it ends."""

    reason: str
    is_consequence: bool = False  # of another rank's end, as far as this one can tell
    failed_at: float = 0.0  # by the clock of its machine


Command = RunPlan | CopyBlocks | Release | Restore | End
Answer = Done | Computed | Failed
Meeting = Challenge | Hello | Welcome | StoreCall | StoreAnswer | Numbers
AnyMessage = Meeting | Beat | Command | Answer

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """Make the bytes of one message."""
    return _ENCODER.encode(message)


def decode(data: bytes | bytearray | memoryview) -> AnyMessage:
    """Read one message; raises BadMessage."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadMessage(f"unreadable message of {len(data)} bytes: {error}") from None


def plan_message(plan: StepPlan) -> RunPlan:
    """Pack a plan."""
    return RunPlan(
        step=plan.step,
        rows=plan.rows.tobytes(),
        token_ids=plan.token_ids.tobytes(),
        positions=plan.positions.tobytes(),
        slot_mapping=plan.slot_mapping.tobytes(),
        cu_seqlens_q=plan.cu_seqlens_q.tobytes(),
        seq_lens=plan.seq_lens.tobytes(),
        block_tables=plan.block_tables.tobytes(),
        samples=plan.samples.tobytes(),
        new_requests=[_entered_message(new_request) for new_request in plan.new_requests],
    )


def read_plan(message: RunPlan) -> StepPlan:
    """Unpack a plan."""
    rows = _array(message.rows, np.int64)
    return StepPlan(
        step=message.step,
        rows=rows,
        token_ids=_array(message.token_ids, np.int32),
        positions=_array(message.positions, np.int64),
        slot_mapping=_array(message.slot_mapping, np.int64),
        cu_seqlens_q=_array(message.cu_seqlens_q, np.int32),
        seq_lens=_array(message.seq_lens, np.int32),
        block_tables=_array(message.block_tables, np.int32).reshape(len(rows), -1),
        samples=_array(message.samples, np.bool_),
        new_requests=tuple(map(_entered_row, message.new_requests)),
    )


def copy_message(copy: BlockCopy) -> CopyBlocks:
    """Pack a copy of blocks."""
    return CopyBlocks(copy.direction, list(map(int, copy.source_blocks)), list(map(int, copy.target_blocks)))


def read_copy(message: CopyBlocks) -> BlockCopy:
    """Unpack a copy of blocks."""
    return BlockCopy(
        direction=message.direction, source_blocks=message.source_blocks, target_blocks=message.target_blocks
    )


def release_message(level: int, blocks_in_use: Sequence[int]) -> Release:
    """Pack an order to give memory back."""
    return Release(int(level), list(map(int, blocks_in_use)))


def computed_message(busy_s: float, sampled: SampledTokens) -> Computed:
    """Pack the tokens of a step."""
    return Computed(
        busy_s,
        sampled.token_ids.astype(np.int64, copy=False).tobytes(),
        sampled.is_invalid.tobytes(),
        _scored_message(sampled.logprobs),
        _scored_message(sampled.prompt_logprobs),
    )


def read_sampled(message: Computed) -> SampledTokens:
    """Unpack the tokens of a step."""
    return SampledTokens(
        _array(message.token_ids, np.int64),
        _array(message.is_invalid, np.bool_),
        _read_scored(message.logprobs),
        _read_scored(message.prompt_logprobs),
    )


def _entered_message(new_request: NewRequestData) -> Entered:
    return Entered(
        row=new_request.row,
        params=new_request.params,
        seed=new_request.seed,
        choice=new_request.choice,
        prompt_token_ids=new_request.prompt_token_ids.tobytes(),
        output_token_ids=new_request.output_token_ids.tobytes(),
        end_token_ids=new_request.end_token_ids,
        last_position=new_request.last_position,
        source_token_ids=None if new_request.source_token_ids is None else new_request.source_token_ids.tobytes(),
    )


def _entered_row(message: Entered) -> NewRequestData:
    source = message.source_token_ids
    return NewRequestData(
        row=message.row,
        params=message.params,
        seed=message.seed,
        choice=message.choice,
        prompt_token_ids=_array(message.prompt_token_ids, np.int32),
        output_token_ids=_array(message.output_token_ids, np.int32),
        end_token_ids=message.end_token_ids,
        last_position=message.last_position,
        source_token_ids=None if source is None else _array(source, np.int32),
    )


def _scored_message(scored: LogprobsArrays | None) -> Scored | None:
    if scored is None:
        return None
    return Scored(
        scored.rows.astype(np.int64, copy=False).tobytes(),
        scored.positions.astype(np.int64, copy=False).tobytes(),
        scored.token_ids.tobytes(),
        scored.logprobs.tobytes(),
        scored.ranks.tobytes(),
    )


def _read_scored(message: Scored | None) -> LogprobsArrays | None:
    if message is None:
        return None
    rows = _array(message.rows, np.int64)
    token_ids = _array(message.token_ids, np.int32).reshape(len(rows), -1)
    return LogprobsArrays(
        rows=rows,
        positions=_array(message.positions, np.int64),
        token_ids=token_ids,
        logprobs=_array(message.logprobs, np.float32).reshape(token_ids.shape),
        ranks=_array(message.ranks, np.int32),
    )


def _array(data: bytes, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    """A copy: what is read cannot be written to, and torch wants what can."""
    return np.frombuffer(data, dtype).copy()
