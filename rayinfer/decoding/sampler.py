"""Sampler: chooses the next token of every row of a batch in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rayinfer.decoding.device_copy import copy_to_device
from rayinfer.decoding.grammar_rows import GrammarRows
from rayinfer.decoding.logprobs import LogprobsTensors, gather_logprobs
from rayinfer.decoding.penalties import PenaltyHistory, PenaltyStrengths
from rayinfer.decoding.ragged_rows import RaggedRows
from rayinfer.decoding.sampling_table import RowSettings, SamplingTable
from rayinfer.decoding.token_rules import TokenRules
from rayinfer.decoding.typical_set import keep_typical_
from rayinfer.errors import InvalidParameter
from rayinfer.grammars.compiler import GrammarCompiler
from rayinfer.sampling_params import SamplingParams
from rayinfer_kernels import ops

_NO_LINES = np.zeros(0, dtype=np.int64)


TokenIds = Sequence[int] | npt.NDArray[np.integer]
RowNumbers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row of a batch."""

    token_ids: Tensor  # int64 [rows]
    is_invalid: Tensor  # bool [rows]: no token could be chosen, so the token id (0) means nothing
    scored_lines: npt.NDArray[np.int64]  # rows of the batch whose requests asked for logprobs
    logprobs: LogprobsTensors | None  # of their tokens, by the unmodified logits; None if none did
    errors: dict[int, str] | None = None  # by row: why its grammar leaves no token


class SamplingTensors(NamedTuple):
    """Sampling settings on the device: integers in int64, others in float64, [rows] each."""

    seed: Tensor
    position: Tensor
    choice: Tensor
    top_k: Tensor
    is_best_taken: Tensor  # greedy, or drawn in another way
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor


class Sampler:
    """Holds the sampling settings of the running requests by row and draws their next tokens.

    A row is treated in this order, which is that of transformers' processors and warpers: logit bias; repetition, then
    frequency and presence penalties; bans, on what is not allowed, on bad tokens and sequences, and on end tokens below
    `min_tokens`, and on what a grammar forbids. Then a greedy row takes the best token, the lowest id of equals. For
    the others follow temperature, top-k, top-p, min-p and typical-p, each by transformers' rule, and one draw: the
    first token in vocabulary order whose cumulated kept probability exceeds `u` times their sum, where `u` is a pure
    function of (seed, choice, position). So a request's tokens depend on its logits and its own settings alone: not on
    its row, the rest of the batch, the number of threads, or on preemption.

    A model with a forced end has it as the last token of every request, whatever else holds.
    A row is invalid if its best score is NaN or infinite: the logits were, or its bans leave no token.
    Scores are float32 whatever the logits are, and probabilities are cumulated in float64.
    """

    def __init__(
        self,
        max_num_rows: int,
        vocab_size: int,
        device: torch.device | str = "cpu",
        *,
        forced_end_token_id: int | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._num_rows = max_num_rows
        self._vocab_size = vocab_size
        self._forced_end_token_id = forced_end_token_id
        self._has_forced_end = forced_end_token_id is not None
        self._device = torch.device(device)
        self._scores: Tensor | None = None
        self._table = SamplingTable(max_num_rows, vocab_size)
        self._penalties = PenaltyHistory(vocab_size, self._device)
        self._rules = TokenRules(max_num_rows, self._device)
        self._end_ids = RaggedRows(max_num_rows, self._device)  # of the rows whose min_tokens forbids them
        self._grammars = None if grammars is None else GrammarRows(grammars, vocab_size, self._device)
        self._listed_ids: dict[int, tuple[int, ...]] = {}  # `logprob_token_ids` of the rows that have any

    @property
    def num_rows(self) -> int:
        """Rows of the batch."""
        return self._num_rows

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""
        return self._vocab_size

    @torch.inference_mode()
    def add_row(
        self,
        row: int,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds,
        end_token_ids: Sequence[int],
        last_position: int | None = None,
    ) -> None:
        """Put a request into `row`, replacing what is there.

        A request that returns, from preemption or from another engine, is added with its original prompt and all its
        outputs, and continues as if it had stayed. `end_token_ids` are those that `min_tokens` forbids, and
        `last_position` is the latest position of its last token.
        """
        self.remove_row(row)
        prompt, output = _as_array(prompt_token_ids), _as_array(output_token_ids)
        penalty_slot = None
        if params.has_penalties:
            # Only the repetition penalty looks at the prompt.
            penalty_slot = self._penalties.take(prompt if params.repetition_penalty != 1.0 else prompt[:0], output)
        if params.has_token_rules:
            self._rules.add_row(row, params, prompt, output)
        if params.structured_outputs is not None:
            if self._grammars is None:
                raise InvalidParameter("structured_outputs is not possible with this model", "structured_outputs")
            self._grammars.add_row(row, params.structured_outputs, output)
        if params.listed_ids:
            self._listed_ids[row] = params.listed_ids
        end_ids = {token_id for token_id in end_token_ids if 0 <= token_id < self._vocab_size}
        forbids_end = params.min_tokens > 0 and bool(end_ids)
        if forbids_end:
            self._end_ids.put(row, np.array(sorted(end_ids)))
        self._table.fill(
            row,
            params,
            seed=seed,
            choice=choice,
            min_end_position=len(prompt) + params.min_tokens if forbids_end else 0,
            last_position=last_position,
            penalty_slot=penalty_slot,
        )

    def remove_row(self, row: int) -> None:
        """Free `row`, if it is not free."""
        self._table.check(row)
        penalty_slot = self._table.penalty_slot(row)
        self._table.clear(row)
        self._rules.remove_row(row)
        if self._grammars is not None:
            self._grammars.remove_row(row)
        self._end_ids.drop(row)
        self._listed_ids.pop(row, None)
        if penalty_slot is not None:
            self._penalties.release(penalty_slot)

    def sample(
        self, logits: Tensor, rows: RowNumbers, positions: RowNumbers, *, batch_rows: RowNumbers | None = None
    ) -> Sampled:
        """Choose a token for each of `rows` from its line of `logits` [len(rows), vocab], which stay as they are.

        `positions` are the indices that the new tokens will have in prompt and output together. The tokens are
        added to the histories of penalties and bad sequences; if this raises, nothing has changed. Logprobs have the
        columns that `batch_rows` need, which are `rows` unless these are a part of a batch.
        """
        if logits.shape != (len(rows), self._vocab_size) or len(positions) != len(rows):
            raise InvalidParameter(
                f"{len(rows)} rows and {len(positions)} positions need logits of shape "
                f"({len(rows)}, {self._vocab_size}), got {tuple(logits.shape)}",
                "logits",
            )
        if not self._has_forced_end and self._table.are_plain(rows):
            return _best_of(logits)
        return self._sample(logits, rows, positions, batch_rows)

    @torch.inference_mode()
    def _sample(
        self, logits: Tensor, rows: RowNumbers, positions: RowNumbers, batch_rows: RowNumbers | None
    ) -> Sampled:
        settings = self._table.at(rows)
        penalized = np.flatnonzero(settings["is_penalized"])
        slots = settings["penalty_slot"][penalized]
        if penalized.size:
            self._penalties.reserve(slots)

        scores = self._adjusted(logits, settings, rows, positions)
        masks = None
        if self._grammars is not None and np.count_nonzero(settings["has_grammar"]):
            masks = self._grammars.masks(rows)
        sampled = self._choose(scores, settings, positions, masks)
        token_ids, is_invalid = sampled.token_ids, sampled.is_invalid
        scored = np.flatnonzero(settings["num_logprobs"])
        logprobs = None
        if scored.size:
            widest = rows[scored] if batch_rows is None else batch_rows
            logprobs = self._logprobs(logits, token_ids, scored, rows, widest)

        if penalized.size:
            lines = self._on_device(penalized)
            self._penalties.record(slots, token_ids[lines], ~is_invalid[lines])
        if np.count_nonzero(settings["has_rules"]):
            self._rules.record(rows, token_ids)
        if self._grammars is not None and masks is not None:
            self._grammars.record(rows, token_ids)
            return Sampled(token_ids, is_invalid, scored, logprobs, self._grammars.errors_of(rows))
        return Sampled(token_ids, is_invalid, scored, logprobs)

    def plain_settings(self, rows: RowNumbers, positions: RowNumbers) -> RowSettings | None:
        """Return the settings of `rows` if all are greedy or plain draws at `positions`; else None.

        A plain draw has a temperature, and may have top-k, top-p and min-p.
        """
        settings = self._table.at(rows)
        needs_more = settings["is_penalized"] | settings["has_rules"] | (settings["num_logprobs"] > 0)
        needs_more |= (
            settings["has_grammar"] | (settings["typical_p"] < 1.0) | (positions < settings["min_end_position"])
        )
        if self._has_forced_end:
            needs_more |= positions >= settings["last_position"]
        return None if needs_more.any() else settings

    def _adjusted(self, logits: Tensor, settings: RowSettings, rows: RowNumbers, positions: RowNumbers) -> Tensor:
        has_rules = np.count_nonzero(settings["has_rules"]) > 0
        penalized = np.flatnonzero(settings["is_penalized"])
        endless = np.flatnonzero(positions < settings["min_end_position"])
        forced = np.flatnonzero(positions >= settings["last_position"]) if self._has_forced_end else _NO_LINES
        if not (has_rules or penalized.size or endless.size or forced.size):
            return logits
        scores = self._copied(logits)
        if has_rules:
            self._rules.add_biases_(scores, rows)
        if penalized.size:
            chosen = settings[penalized]
            strengths = PenaltyStrengths(
                repetition=self._on_device(chosen["repetition_penalty"]),
                presence=self._on_device(chosen["presence_penalty"]),
                frequency=self._on_device(chosen["frequency_penalty"]),
            )
            self._penalties.penalize_(scores, self._on_device(penalized), chosen["penalty_slot"], strengths)
        if has_rules:
            self._rules.forbid_(scores, rows)
        if endless.size and (end_ids := self._end_ids.gather(rows[endless])) is not None:
            scores[self._on_device(endless)[end_ids.lines], end_ids.columns[0]] = float("-inf")
        if forced.size:
            lines = self._on_device(forced)
            scores.index_fill_(0, lines, float("-inf"))
            scores[lines, self._forced_end_token_id] = 0.0
        return scores

    def _copied(self, logits: Tensor) -> Tensor:
        """Return a copy in float32, valid until the next call: on a CPU, fresh memory would cost more than copying."""
        if self._device.type != "cpu":
            return logits.to(torch.float32, copy=True)
        if self._scores is None or len(self._scores) < len(logits):
            self._scores = torch.empty(logits.shape)
        return self._scores[: len(logits)].copy_(logits)

    def _logprobs(
        self,
        logits: Tensor,
        token_ids: Tensor,
        scored: npt.NDArray[np.int64],
        rows: RowNumbers,
        batch_rows: RowNumbers,
    ) -> LogprobsTensors:
        lines = self._on_device(scored)
        num_top = int(self._table.at(batch_rows)["num_logprobs"].max()) - 1
        listed = self._listed_at(rows[scored], batch_rows) if self._listed_ids else None
        return gather_logprobs(logits, token_ids[lines], num_top, listed, lines=lines)

    def _listed_at(self, rows: RowNumbers, batch_rows: RowNumbers) -> Tensor | None:
        """Return the listed ids of rows, [rows, most listed]: each row's are its last columns, others mean nothing.

        The most is that of `batch_rows`.
        """
        lists = [self._listed_ids.get(row, ()) for row in rows.tolist()]
        most = max(len(self._listed_ids.get(row, ())) for row in batch_rows.tolist())
        if not most:
            return None
        return self._on_device(np.array([(0,) * (most - len(ids)) + ids for ids in lists], np.int64))

    def _choose(
        self, scores: Tensor, settings: RowSettings, positions: RowNumbers, masks: ops.RowMasks | None
    ) -> ops.SampledRows:
        is_typical = (settings["typical_p"] < 1.0) & ~settings["is_greedy"]
        numbers = sampling_tensors(settings, positions, is_typical, self._device)
        uniform = ops.uniform(numbers.seed, numbers.position, numbers.choice)
        truncation = (numbers.temperature, numbers.top_k, numbers.top_p, numbers.min_p)
        if masks is not None and is_typical.any():  # whose weights are computed below
            scores = scores.to(torch.float32, copy=True)
            ops.mask_rows_(scores, *masks)
            masks = None
        sampled = ops.sample_rows(scores, *truncation, uniform, numbers.is_best_taken, masks)
        if is_typical.any():
            lines = self._on_device(np.flatnonzero(is_typical))
            theirs = scores.index_select(0, lines)
            weights = ops.kept_weights(theirs, ops.argmax(theirs).values, *(each[lines] for each in truncation))
            keep_typical_(weights, self._on_device(settings["typical_p"][is_typical]))
            drawn = ops.first_exceeding(weights, uniform[lines])
            sampled.token_ids[lines] = drawn.masked_fill_(sampled.is_invalid[lines], 0)
        return sampled

    def _on_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        return copy_to_device(array, self._device)


def sampling_tensors(
    settings: RowSettings, positions: RowNumbers, is_typical: npt.NDArray[np.bool_], device: torch.device
) -> SamplingTensors:
    """Copy the settings of rows to the device at once."""
    is_best_taken = settings["is_greedy"] | is_typical
    integers = (settings["seed"], positions, settings["choice"], settings["top_k"], is_best_taken)
    floats = (settings["temperature"], settings["top_p"], settings["min_p"])
    columns = [column.astype(np.int64) for column in integers]
    columns += [column.astype(np.float64).view(np.int64) for column in floats]
    # Each begins at a multiple of 16 bytes: a GPU's kernels are compiled once more for those that do not.
    host = np.zeros((len(columns), len(settings) + len(settings) % 2), np.int64)
    host[:, : len(settings)] = columns
    copied = copy_to_device(host, device)[:, : len(settings)]
    return SamplingTensors(*copied[: len(integers)], *copied[len(integers) :].view(torch.float64))


def _best_of(logits: Tensor) -> Sampled:
    """Choose each line's best token, as `Sampler.sample` does for greedy rows without other settings."""
    best = ops.argmax(logits)
    if logits.device.type == "cpu":  # numpy's small operations take a tenth of torch's time
        is_finite = np.isfinite(best.values.numpy())
        if is_finite.all():
            return Sampled(best.indices, torch.from_numpy(~is_finite), _NO_LINES, None)
    is_invalid = _is_invalid(best.values)
    return Sampled(best.indices.masked_fill_(is_invalid, 0), is_invalid, _NO_LINES, None)


def _is_invalid(values: Tensor) -> Tensor:
    return (values - values).ne(0.0)  # not finite; isfinite would be four operations


def _as_array(token_ids: TokenIds) -> npt.NDArray[np.int64]:
    return np.asarray(token_ids, dtype=np.int64)
