"""Outputs of the engine: token deltas between processes, texts and tokens for callers."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, NamedTuple

from rayinfer.predictions import PredictionOutput

FinishReason = Literal["stop", "length", "abort", "error", "timeout"]
TraceEventName = Literal[
    "received",
    "dispatched",
    "migrated",
    "queued",
    "admitted",
    "prefill_chunk",
    "first_token",
    "preempted",
    "resumed",
    "swapped_out",
    "swapped_in",
    "loaded",
    "speculated",
    "finished",
]


class Logprob(NamedTuple):
    """Log probability of a token, before temperature, penalties and every other setting."""

    logprob: float  # natural logarithm; -inf where the probability is zero
    rank: int | None  # 1 is the most likely token at its position; None for one of `logprob_token_ids` beside the best


# One position of a sequence, by token id: first its token, then the most likely ones in order, then listed ones.
TokenLogprobs = dict[int, Logprob]


class TraceEvent(NamedTuple):
    """Event of a traced request."""

    name: TraceEventName
    time_s: float  # since 1970
    details: dict[str, int | float | str]


@dataclass(kw_only=True, slots=True)
class CompletionOutput:
    """One of a request's n choices: the whole of it, or in a stream what is new since the last output."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # of token_ids, if requested
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop id or stop string that ended it; None for the end-of-text token
    error: str | None = None  # what the request itself is to be blamed for, where it ended with "error"


@dataclass(kw_only=True, slots=True)
class RequestOutput:
    """Output of a request; streams yield deltas, `LLM.generate` returns the whole."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0  # prompt tokens whose keys and values were found in the prefix cache
    finished: bool = False
    prompt: str | None = None
    # Of the prompt's tokens, the first one's being None; in a stream once, with the first output.
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    # `LLM`'s only, of all choices, in order of time, with the last output; a router keeps them for later queries.
    trace: list[TraceEvent] | None = None
    prediction: PredictionOutput | None = None  # of a model that does not generate, with the only output


class CompletionAggregate:
    """One choice of a request, aggregated from the outputs of a stream."""

    __slots__ = ("error", "finish_reason", "logprobs", "stop_reason", "texts", "token_ids")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None

    def add(self, output: CompletionOutput) -> None:
        """Append what is new of the choice."""
        self.texts.append(output.text)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self.error = output.error


class OutputAggregate:
    """The whole output of a request, aggregated from the outputs of its stream."""

    def __init__(self, num_choices: int) -> None:
        self.choices = [CompletionAggregate() for _ in range(num_choices)]
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._latest: RequestOutput | None = None

    def add(self, output: RequestOutput) -> None:
        """Append what is new."""
        self._latest = output
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        for completion in output.outputs:
            self.choices[completion.index].add(completion)

    def whole(self) -> RequestOutput:
        """Return all there is so far, in the order of the choices; there must be some output."""
        assert self._latest is not None
        outputs = [
            CompletionOutput(
                index=index,
                text="".join(choice.texts),
                token_ids=list(choice.token_ids),
                logprobs=list(choice.logprobs) or None,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                error=choice.error,
            )
            for index, choice in enumerate(self.choices)
        ]
        return replace(self._latest, outputs=outputs, prompt_logprobs=self.prompt_logprobs)


class TokenDelta(NamedTuple):
    """The tokens that one request gained in one engine step, or its end."""

    request_id: str
    start_pos: int  # position of token_ids[0] among the request's output tokens
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # of token_ids
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # of all the prompt, once, by the first token
    trace: list[TraceEvent] | None = None  # the engine's events of a traced request, with its end
    prediction: PredictionOutput | None = None  # with the end of a request to a predictor, which has no tokens
    error: str | None = None  # with the end "error" that the request itself is to be blamed for; written for clients


class Credits(NamedTuple):
    """Bounds on what one router may have in flight at an engine, so that requests queue there; 0: no bound."""

    num_requests: int = 0
    num_tokens: int = 0  # of prompts and expected answers, which fill the cache
    num_prefill_tokens: int = 0  # of prompts whose first token is not there; the last one may go beyond


NO_BOUNDS = Credits()


class EngineState(StrEnum):
    """Engine states; in each but DEAD it takes requests, and ends those that are aborted or overdue."""

    RUNNING = "running"
    PAUSED = "paused"  # no step is planned, and everything stays where it is
    ASLEEP = "asleep"  # the same, and memory may be given back
    DEAD = "dead"


@dataclass(kw_only=True, slots=True)
class KVStoreStats:
    """Counters of one engine's use of the machine's KV block store, and the sizes of the whole store."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    memory_hit_tokens_total: int = 0  # loaded from shared memory
    disk_hit_tokens_total: int = 0
    stored_blocks_total: int = 0
    evicted_blocks_total: int = 0  # by blocks that this engine stored
    dropped_blocks_total: int = 0  # computed here and not stored: queues were full, or the file system
    damaged_blocks_total: int = 0  # found damaged and not used, whole files among them


@dataclass(kw_only=True, slots=True)
class KVTransferStats:
    """Counters of one engine's fetches of KV blocks, from other machines and of what other engines were writing."""

    fetches_total: int = 0
    failed_fetches_total: int = 0  # blocks were missing at their end, which the engine computed
    fetched_blocks_total: int = 0  # from other machines
    sent_blocks_total: int = 0  # to other machines
    damaged_blocks_total: int = 0  # that arrived damaged and were not used
    fetch_seconds_total: float = 0.0  # that requests were held back


@dataclass(kw_only=True, slots=True)
class ImageEncodingStats:
    """Counters and gauges of the encoder of images of one engine."""

    encodings_total: int = 0  # images that were computed
    encode_seconds_total: float = 0.0  # that they took, decoding not included
    queries_total: int = 0  # images of requests that were added
    cache_hits_total: int = 0  # those that an earlier request had, or one twice: nothing was computed
    num_waiting: int = 0  # requests whose images wait or are being encoded


@dataclass(kw_only=True, slots=True)
class AdapterStats:
    """Counters of one engine's LoRA adapters, and the names of those that its requests have."""

    max_loras: int  # that a step may have
    running: list[str] = field(default_factory=list)  # names, of the first ones only
    waiting: list[str] = field(default_factory=list)
    num_resident: int = 0
    resident_bytes: int = 0  # of their tensors in host memory
    slot_bytes: int = 0  # of those that steps can use, in the model's type
    loads_total: int = 0  # from files
    failed_loads_total: int = 0
    evictions_total: int = 0
    load_seconds_total: float = 0.0


@dataclass(kw_only=True, slots=True)
class EngineStats:
    """An engine's counters (`*_total` only grow) and gauges at one moment."""

    state: EngineState = EngineState.RUNNING
    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_used: int = 0  # blocks with readers; free blocks that still hold a cached prefix are not counted
    kv_blocks_cached: int = 0  # those: free, with a prefix that can be hit
    kv_blocks_total: int = 0
    kv_window_pages_used: int = 0  # of sliding-window layers, where these have a pool of their own
    kv_window_pages_total: int = 0
    kv_offload_blocks_used: int = 0  # of the second pool, kept for preempted requests
    kv_offload_blocks_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    cached_prompt_tokens_total: int = 0
    num_preemptions_total: int = 0
    num_steps_total: int = 0
    step_tokens: list[int] = field(default_factory=list)  # steps by their number of tokens, in `STEP_TOKENS`' buckets
    step_tokens_total: int = 0
    requests_finished_total: dict[str, int] = field(default_factory=dict)  # by finish reason
    num_drafts_total: int = 0  # drafts that steps have verified, one a request and step
    draft_tokens_total: int = 0
    accepted_draft_tokens_total: int = 0
    credits: Credits = NO_BOUNDS  # of each router that listens
    stage_idle_shares: list[float] = field(default_factory=list)  # of the time with work so far, by stage of a pipeline
    kv_store: KVStoreStats | None = None  # None without a store
    kv_transfer: KVTransferStats | None = None  # None without transfers
    images: ImageEncodingStats | None = None  # None for a model that reads no images
    adapters_in_memory: list[str] = field(default_factory=list)  # digests of those used last
    adapters: AdapterStats | None = None  # None where requests may have none

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that have readers, or of the window pages if that is higher, 0 to 1."""
        share_of_blocks = self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0
        if not self.kv_window_pages_total:
            return share_of_blocks
        return max(share_of_blocks, self.kv_window_pages_used / self.kv_window_pages_total)


@dataclass(kw_only=True, slots=True)
class StepMessage:
    """All results of one engine step for one router."""

    deltas: list[TokenDelta]
    stats: EngineStats
    blocks_stored: list[bytes] = field(default_factory=list)  # hashes that entered the prefix cache
    blocks_removed: list[bytes] = field(default_factory=list)
    # Heartbeats, sent when there is no step: how long the engine has been in its current step, and the limit.
    stalled_s: float = 0.0
    stall_limit_s: float = float("inf")
