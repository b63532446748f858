"""A request inside the engine, and its life cycle."""

from dataclasses import dataclass, field
from enum import Enum

from rayinfer.engine.plan.step_plan import Int32Array, NewRequestData, PromptImages
from rayinfer.kv_cache.block_hash import BlockHashes, prefix_salt
from rayinfer.outputs import FinishReason, TokenLogprobs, TraceEvent
from rayinfer.priority_queue import QueueEntry, is_background
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.traces.request_trace import RequestTrace


class RequestStatus(Enum):
    """States of a request; transitions are those in `_NEXT`."""

    WAITING = "waiting"  # in the queue, for the first time or preempted
    WAITING_FOR_PREFIX = "waiting_for_prefix"  # another request is about to write the prefix they share
    RUNNING = "running"  # has a row of the batch and blocks
    FINISHED = "finished"


_NEXT = {
    RequestStatus.WAITING: {RequestStatus.WAITING_FOR_PREFIX, RequestStatus.RUNNING, RequestStatus.FINISHED},
    RequestStatus.WAITING_FOR_PREFIX: {RequestStatus.WAITING, RequestStatus.FINISHED},
    RequestStatus.RUNNING: {RequestStatus.WAITING, RequestStatus.FINISHED},
    RequestStatus.FINISHED: set(),
}


@dataclass(kw_only=True, slots=True, eq=False)
class Request:
    """A request's own state; while it runs, its counters, tokens and blocks live in its row of the batch table."""

    request_id: str
    prompt_len: int  # of the client's prompt: kept through preemptions
    token_ids: Int32Array  # prompt and output known so far; stale while it runs
    num_migrated_output_tokens: int = 0  # output tokens that it arrived with
    max_total_tokens: int  # limit of prompt and output together
    source_token_ids: Int32Array | None = None  # the encoder's input, if there is an encoder
    images: PromptImages | None = None  # whose embeddings take the places of tokens in the prompt
    params: SamplingParams
    seed: int
    choice: int = 0
    priority: int = 0
    salt: bytes = b""
    adapter: str | None = None  # the digest of its adapter
    adapter_slot: int | None = None  # while it runs
    end_token_ids: tuple[int, ...] = ()  # eos unless ignored, and the request's own stop ids
    arrival: float = 0.0
    deadline: float | None = None
    block_hashes: BlockHashes
    status: RequestStatus = RequestStatus.WAITING
    queue_entry: QueueEntry["Request"] | None = None
    row: int | None = None
    blocks: list[int] = field(default_factory=list)  # stale while it runs
    num_cached_tokens: int | None = None  # found in the prefix cache when it first ran
    num_hit_blocks: int | None = None  # the fewest found there at any of its admissions
    is_load_done: bool = False  # from the machine's block store, since it was last admitted
    num_draft_tokens: int = 0  # that steps have verified for it; stale while it runs, as the next one
    num_accepted_tokens: int = 0  # of those
    num_blocks_overtaken: int = 0  # allocated to requests that overtook this one, which did not fit
    finish_reason: FinishReason | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # as far as known; None if unwanted or returned already
    trace: RequestTrace | None = None
    grammar: object | None = None  # its compiled grammar, which others must not displace while it may run

    @property
    def trace_events(self) -> list[TraceEvent] | None:
        """The events so far, if it is traced."""
        return None if self.trace is None else self.trace.in_order()

    def move_to(self, status: RequestStatus) -> None:
        """Change the state; asserts that the transition is allowed."""
        assert status in _NEXT[self.status], f"{self.request_id}: {self.status.value} -> {status.value}"
        self.status = status

    @property
    def is_background(self) -> bool:
        """Whether it gets idle capacity only."""
        return is_background(self.priority)

    @property
    def is_finished(self) -> bool:
        """Whether its one terminal event has happened."""
        return self.status is RequestStatus.FINISHED

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the client's prompt."""
        return self.prompt_len if self.source_token_ids is None else len(self.source_token_ids)

    @property
    def is_prompt_logprobs_only(self) -> bool:
        """Whether only prompt logprobs are wanted, and no token."""
        return self.params.max_tokens == 0

    @property
    def wants_logprobs_or_trace(self) -> bool:
        """Whether its deltas have logprobs or a trace."""
        return self.wants_logprobs or self.trace is not None

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities are still to be returned."""
        return self.params.logprobs is not None or self.prompt_logprobs is not None

    @property
    def num_reusable_tokens(self) -> int:
        """Number of its first tokens that may be prefix-cache hits.

        The last token is always computed, since its logits are needed, and so is every one before a token whose
        logprob is still to be returned.
        """
        scored = self.prompt_logprobs
        return len(self.token_ids if scored is None or len(scored) == self.prompt_len else scored) - 1

    def num_blocks_needed(self, block_size: int) -> int:
        """Count the blocks that hold its tokens."""
        return -(-len(self.token_ids) // block_size)

    def note_hit_blocks(self, num_blocks: int) -> None:
        """Record how many of its first blocks were hits; after a preemption some may be its own."""
        self.num_hit_blocks = num_blocks if self.num_hit_blocks is None else min(self.num_hit_blocks, num_blocks)

    def take_prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """Return the prompt logprobs once, when all of the prompt is computed; None if unwanted, and afterwards."""
        scored, self.prompt_logprobs = self.prompt_logprobs, None
        assert scored is None or len(scored) == self.prompt_len, f"{self.request_id}: {len(scored)} prompt logprobs"
        return scored

    def new_request_data(self, row: int, token_ids: Int32Array) -> NewRequestData:
        """Make what workers need of the request in its row, with these tokens."""
        return NewRequestData(
            row=row,
            params=self.params,
            seed=self.seed,
            choice=self.choice,
            prompt_token_ids=token_ids[: self.prompt_len],
            output_token_ids=token_ids[self.prompt_len :],
            end_token_ids=self.end_token_ids,
            last_position=self.max_total_tokens - 1,
            source_token_ids=self.source_token_ids,
            images=self.images,
            adapter=self.adapter,
            adapter_slot=self.adapter_slot,
        )


def new_request(
    request: GenerationRequest,
    token_ids: Int32Array,
    *,
    seed: int,
    max_model_len: int,
    block_size: int,
    eos_token_ids: tuple[int, ...],
    now: float,
    weights_version: int = 0,
    source_token_ids: Int32Array | None = None,
    adapter: str | None = None,
) -> Request:
    """Make the engine's state of a request; `token_ids` are its checked prompt and output, `adapter` is a digest."""
    params = request.sampling_params
    prompt_len = len(request.prompt_token_ids)
    limit = max_model_len if params.max_tokens is None else min(max_model_len, prompt_len + params.max_tokens)
    salt = prefix_salt(request.tenant, request.cache_salt, request.adapter, weights_version, request.image_digests)
    return Request(
        request_id=request.request_id,
        prompt_len=prompt_len,
        token_ids=token_ids,
        num_migrated_output_tokens=len(request.output_token_ids),
        source_token_ids=source_token_ids,
        max_total_tokens=limit,
        params=params,
        seed=seed if params.seed is None else params.seed,
        choice=request.choice,
        priority=request.priority,
        salt=salt,
        adapter=adapter,
        end_token_ids=(() if params.ignore_eos else eos_token_ids) + params.stop_ids,
        arrival=now,
        deadline=None if request.timeout_s is None else now + request.timeout_s,
        block_hashes=BlockHashes(block_size, salt),
        prompt_logprobs=None if params.prompt_logprobs is None else [None],
        trace=RequestTrace() if request.trace else None,
    )
