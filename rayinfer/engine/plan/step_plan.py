"""A step's input and output as compact arrays, which also travel between the ranks of an engine."""

import msgspec
import numpy as np
import numpy.typing as npt

from rayinfer.sampling_params import SamplingParams

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Int32Matrix = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Float32Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]


class PromptImages(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Embeddings of a prompt's images, and the positions whose tokens they stand for."""

    positions: Int32Array  # [num_tokens], ascending
    embeddings: tuple[Float32Matrix, ...]  # of each image, [its tokens, hidden_size]; num_tokens rows in all

    # Of a model with three positions, those of the tokens up to the last image's last one, time, height and width:
    # [3, num_tokens], and what is added to the positions behind them. None: tokens have one position.
    rope_positions: Int32Matrix | None = None
    rope_delta: int = 0

    def between(self, low: int, high: int) -> list[Float32Matrix]:
        """Return the embeddings of the positions low..high-1, counted from the first one."""
        parts, start = [], 0
        for image in self.embeddings:
            part = image[max(0, low - start) : max(0, high - start)]
            if len(part):
                parts.append(part)
            start += len(image)
        return parts


class NewRequestData(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A request that is added to a row of the batch, for the first time or again after a preemption."""

    row: int
    params: SamplingParams
    seed: int
    choice: int
    prompt_token_ids: Int32Array
    output_token_ids: Int32Array
    end_token_ids: tuple[int, ...]  # the ids that min_tokens forbids
    last_position: int | None = None  # of its last token, at the latest
    source_token_ids: Int32Array | None = None  # the encoder's input
    images: PromptImages | None = None
    adapter: str | None = None  # the digest of its adapter
    adapter_slot: int | None = None  # where its terms are, or are to be put


class StepPlan(msgspec.Struct, tag="plan", array_like=True, frozen=True, kw_only=True):
    """One step: the new tokens of the scheduled requests, one request after the other."""

    step: int
    rows: Int64Array  # [num_requests], each request's row in the batch
    token_ids: Int32Array  # [num_tokens]
    positions: Int64Array  # [num_tokens]
    slot_mapping: Int64Array  # [num_tokens], block x block_size + offset
    cu_seqlens_q: Int32Array  # [num_requests + 1]
    seq_lens: Int32Array  # [num_requests], tokens in the cache after this step
    block_tables: Int32Matrix  # [num_requests, max_blocks]
    samples: BoolArray  # [num_requests], whether the request gets a new token
    new_requests: tuple[NewRequestData, ...] = ()
    emptied_adapter_slots: tuple[int, ...] = ()  # whose terms are freed, before those of `new_requests` are put
    # [num_requests], whether its last token here is the one that its row sampled last, which was still in flight
    # when this was planned; None without async scheduling. Its entry in token_ids is unused.
    uses_last_sampled: BoolArray | None = None
    # [num_requests], how many of its last tokens here are drafts, to be verified; None where no request has any.
    # `seq_lens` counts them.
    num_drafts: Int32Array | None = None
    # Where sliding-window layers have their keys and values elsewhere: `block_tables` and `slot_mapping` of these
    # layers, by page of the window pool. What lies behind the window is not read.
    window_tables: Int32Matrix | None = None
    window_slot_mapping: Int64Array | None = None

    @property
    def num_requests(self) -> int:
        """Requests in this step."""
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return len(self.token_ids)

    def part(self, first: int, last: int) -> "StepPlan":
        """Return the step of the requests first..last-1 alone."""
        start, end = int(self.cu_seqlens_q[first]), int(self.cu_seqlens_q[last])
        return self._select(slice(first, last), slice(start, end), self.cu_seqlens_q[first : last + 1] - start)

    def only(self, is_kept: BoolArray) -> "StepPlan":
        """Return the step without some of its requests; is_kept [num_requests]."""
        counts = np.diff(self.cu_seqlens_q)
        is_kept_token = np.repeat(is_kept, counts)
        cu_seqlens_q = np.zeros(int(is_kept.sum()) + 1, np.int32)
        counts[is_kept].cumsum(out=cu_seqlens_q[1:])
        return self._select(is_kept, is_kept_token, cu_seqlens_q)

    def without_drafts(self) -> "StepPlan":
        """Return the step without tokens that are only guesses."""
        if self.num_drafts is None:
            return self
        counts = np.diff(self.cu_seqlens_q)
        ends = np.repeat(self.cu_seqlens_q[1:] - self.num_drafts, counts)
        cu_seqlens_q = np.zeros_like(self.cu_seqlens_q)
        (counts - self.num_drafts).cumsum(out=cu_seqlens_q[1:])
        plan = self._select(slice(None), np.arange(self.num_tokens) < ends, cu_seqlens_q)
        return msgspec.structs.replace(plan, seq_lens=self.seq_lens - self.num_drafts, num_drafts=None)

    def _select(self, requests: slice | BoolArray, tokens: slice | BoolArray, cu_seqlens_q: Int32Array) -> "StepPlan":
        rows = self.rows[requests]
        return msgspec.structs.replace(
            self,
            rows=rows,
            token_ids=self.token_ids[tokens],
            positions=self.positions[tokens],
            slot_mapping=self.slot_mapping[tokens],
            cu_seqlens_q=cu_seqlens_q,
            seq_lens=self.seq_lens[requests],
            block_tables=self.block_tables[requests],
            samples=self.samples[requests],
            new_requests=tuple(new_request for new_request in self.new_requests if new_request.row in rows),
            emptied_adapter_slots=(),  # done when the step began
            uses_last_sampled=None if self.uses_last_sampled is None else self.uses_last_sampled[requests],
            num_drafts=None if self.num_drafts is None else self.num_drafts[requests],
            window_tables=None if self.window_tables is None else self.window_tables[requests],
            window_slot_mapping=None if self.window_slot_mapping is None else self.window_slot_mapping[tokens],
        )


class LogprobsArrays(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Logprobs of some tokens and of the most likely ones at their positions, before any sampling setting.

    There are as many columns as the request with most `logprobs` needs; others use the first ones.
    Tokens of a request's `logprob_token_ids` are its last columns; those between mean nothing to it.
    """

    rows: Int64Array  # [num_tokens], the requests' rows, one request's tokens together and in order
    positions: Int64Array  # [num_tokens], of these tokens, in prompt and output together
    token_ids: Int32Matrix  # [num_tokens, 1 + k + m]: the token itself, then the k most likely, then m listed
    logprobs: Float32Matrix  # [num_tokens, 1 + k + m]
    ranks: Int32Array  # [num_tokens], of the token itself, 1 is the most likely

    def only(self, rows: Int64Array) -> "LogprobsArrays":
        """Return the logprobs of these rows."""
        is_kept = np.isin(self.rows, rows)
        return LogprobsArrays(
            rows=self.rows[is_kept],
            positions=self.positions[is_kept],
            token_ids=self.token_ids[is_kept],
            logprobs=self.logprobs[is_kept],
            ranks=self.ranks[is_kept],
        )


class SampledTokens(msgspec.Struct, array_like=True, frozen=True):
    """The new tokens of every request that sampled, in the plan's order: one, and those of accepted drafts before."""

    token_ids: Int64Array  # [number of true `samples`], or the sum of `counts`
    is_invalid: BoolArray  # [number of true `samples`]: its last token could not be chosen
    logprobs: LogprobsArrays | None = None  # of the new tokens of those requests that asked for them
    prompt_logprobs: LogprobsArrays | None = None  # of prompt tokens, except the first of a prompt
    errors: dict[int, str] | None = None  # by row: why its own grammar leaves no token
    counts: Int32Array | None = None  # [number of true `samples`], tokens of each; None: one

    @property
    def last_token_ids(self) -> Int64Array:
        """The last new token of each request, [number of true `samples`]."""
        if self.counts is None:
            return self.token_ids
        last_token_ids: Int64Array = self.token_ids[self.counts.cumsum() - 1]
        return last_token_ids

    def only(self, is_kept: BoolArray, rows: Int64Array) -> "SampledTokens":
        """Return the tokens of some requests; is_kept [number of true `samples`], and the rows of kept logprobs."""
        is_kept_token = is_kept if self.counts is None else np.repeat(is_kept, self.counts)
        return SampledTokens(
            self.token_ids[is_kept_token],
            self.is_invalid[is_kept],
            None if self.logprobs is None else self.logprobs.only(rows),
            None if self.prompt_logprobs is None else self.prompt_logprobs.only(rows),
            self.errors and {row: error for row, error in self.errors.items() if row in rows},
            None if self.counts is None else self.counts[is_kept],
        )
