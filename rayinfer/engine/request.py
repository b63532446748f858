"""One request inside the engine and its life cycle."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from rayinfer.engine.step_plan import EnteredRow, Int32Array
from rayinfer.kv_cache.block_hash import PrefixDigests
from rayinfer.outputs import FinishReason
from rayinfer.priority_queue import Ticket
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams


class RequestStatus(Enum):
    """Where a request stands; it moves along `_NEXT` only."""

    WAITING = "waiting"  # in the queue, for the first time or preempted
    PARKED = "parked"  # waits for a twin to write the prefix they share
    RUNNING = "running"  # has a row of the batch and blocks
    FINISHED = "finished"


_NEXT = {
    RequestStatus.WAITING: {RequestStatus.PARKED, RequestStatus.RUNNING, RequestStatus.FINISHED},
    RequestStatus.PARKED: {RequestStatus.WAITING, RequestStatus.FINISHED},
    RequestStatus.RUNNING: {RequestStatus.WAITING, RequestStatus.FINISHED},
    RequestStatus.FINISHED: set(),
}


@dataclass(kw_only=True, slots=True, eq=False)
class Request:
    """A request's own state; while it runs, its counters and tokens live in its row of the batch table."""

    request_id: str
    prompt_len: int  # of the client's prompt: kept through preemptions
    token_ids: Int32Array  # prompt and output known so far; stale while it runs
    max_total_tokens: int  # prompt and output together end here
    params: SamplingParams
    seed: int
    choice: int = 0
    priority: int = 0
    salt: bytes = b""
    end_token_ids: tuple[int, ...] = ()  # eos unless ignored, and the request's own stop ids
    arrival: float = 0.0
    deadline: float | None = None
    digests: PrefixDigests
    status: RequestStatus = RequestStatus.WAITING
    ticket: Ticket["Request"] | None = None
    row: int | None = None
    blocks: list[int] = field(default_factory=list)
    num_cached_tokens: int | None = None  # found in the prefix cache when it first ran
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None

    def move_to(self, status: RequestStatus) -> None:
        """Take the next step of the life cycle."""
        assert status in _NEXT[self.status], f"{self.request_id}: {self.status.value} -> {status.value}"
        self.status = status

    @property
    def is_finished(self) -> bool:
        """Whether its one terminal event has happened."""
        return self.status is RequestStatus.FINISHED

    def entered_row(self, row: int) -> EnteredRow:
        """What the sampler must know when the request takes a row."""
        return EnteredRow(
            row=row,
            params=self.params,
            seed=self.seed,
            choice=self.choice,
            prompt_token_ids=self.token_ids[: self.prompt_len],
            output_token_ids=self.token_ids[self.prompt_len :],
            end_token_ids=self.end_token_ids,
        )


def new_request(
    request: GenerationRequest,
    *,
    seed: int,
    max_model_len: int,
    block_size: int,
    eos_token_ids: tuple[int, ...],
    now: float,
) -> Request:
    """Turn what came over the wire into the engine's own state; the request has been checked."""
    params = request.sampling_params
    prompt_len = len(request.prompt_token_ids)
    limit = max_model_len if params.max_tokens is None else min(max_model_len, prompt_len + params.max_tokens)
    # As repr writes it, no name can pass for two, and any text of a client's can be encoded.
    salt = repr((request.tenant, request.cache_salt, request.adapter or "")).encode()
    return Request(
        request_id=request.request_id,
        prompt_len=prompt_len,
        token_ids=np.array([*request.prompt_token_ids, *request.output_token_ids], np.int32),
        max_total_tokens=limit,
        params=params,
        seed=seed if params.seed is None else params.seed,
        choice=request.choice,
        priority=request.priority,
        salt=salt,
        end_token_ids=(() if params.ignore_eos else eos_token_ids) + params.stop_ids,
        arrival=now,
        deadline=None if request.timeout_s is None else now + request.timeout_s,
        digests=PrefixDigests(block_size, salt),
    )
