"""Comparison of two answers: the first token that differs, and the margin of that choice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.kv_cache.cache_tensors import allocate_kv_caches
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import load_decoder
from rayinfer.models.model_config import read_model_config
from rayinfer.sampling_params import SamplingParams
from rayinfer_kernels.reference.philox import uniform

NEAR_TIE = 1e-3  # between the two best logits: either of their tokens is right
NEAR_BORDER = 1e-6  # between a draw and the border of two tokens, in probability: either of them is right
BLOCK_SIZE, NUM_BLOCKS = 16, 80


class GoldenRequest(NamedTuple):
    """A prompt and how it is to be continued."""

    name: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams


class BestTwo(NamedTuple):
    """The two most likely next tokens and their logits, the best first."""

    token_ids: tuple[int, int]
    logits: tuple[float, float]

    @property
    def gap(self) -> float:
        return self.logits[0] - self.logits[1]

    def __str__(self) -> str:
        pairs = zip(self.token_ids, self.logits, strict=True)
        return ", ".join(f"{token_id} ({logit:.6f})" for token_id, logit in pairs) + f", gap {self.gap:.2e}"


class Draw(NamedTuple):
    """A share of the probability, and where each token's part of it ends."""

    share: float
    ends: Tensor  # float64 [vocab]

    def start_of(self, token_id: int) -> float:
        return float(self.ends[token_id - 1]) if token_id else 0.0

    def end_of(self, token_id: int) -> float:
        return float(self.ends[token_id])

    def lies_within(self, token_id: int, *, tolerance: float) -> bool:
        return self.start_of(token_id) - tolerance <= self.share <= self.end_of(token_id) + tolerance

    def is_at_border_between(self, one: int, other: int) -> bool:
        borders = (self.end_of(min(one, other)), self.start_of(max(one, other)))
        return all(abs(self.share - border) <= NEAR_BORDER for border in borders)

    def describe(self, token_id: int) -> str:
        return f"token {token_id} takes [{self.start_of(token_id):.9f}, {self.end_of(token_id):.9f})"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which an answer is not what was expected; `is_excused` if either would be right."""

    name: str
    position: int  # in the output
    expected: int | None  # None: the answer has ended already
    got: int | None
    evidence: str
    is_excused: bool

    def __str__(self) -> str:
        return f"{self.name!r}, output token {self.position}: expected {self.expected}, got {self.got}; {self.evidence}"


class OwnModel:
    """Our decoder, given one text in one piece, to look at the logits where tokens differ; loaded when first asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def next_logits(self, token_ids: Sequence[int]) -> Tensor:
        """The float32 logits [vocab] of what follows `token_ids`."""
        count = len(token_ids)
        batch = AttentionBatch(
            positions=torch.arange(count),
            slot_mapping=torch.arange(count),
            cu_seqlens_q=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([count], dtype=torch.int32),
            block_tables=torch.arange(NUM_BLOCKS, dtype=torch.int32).unsqueeze(0),
        )
        with torch.inference_mode():
            return self._decoder.logits(self._decoder.forward(torch.tensor(token_ids), batch)[-1:])[0]

    @cached_property
    def _decoder(self) -> Decoder:
        config, dtype, device = read_model_config(self._folder), torch.float32, torch.device("cpu")
        decoder = load_decoder(self._folder, dtype, device)
        decoder.prepare(dtype, device, NUM_BLOCKS * BLOCK_SIZE)
        caches = allocate_kv_caches(
            config.num_layers, NUM_BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim, dtype, device
        )
        decoder.bind_kv_caches(caches)
        return decoder


def best_two(logits: Tensor) -> BestTwo:
    """The two best of `logits` [vocab]."""
    best = logits.topk(2)
    (first, second), (high, low) = best.indices.tolist(), best.values.tolist()
    return BestTwo((first, second), (high, low))


def draw_for(request: GoldenRequest, output_token_ids: Sequence[int], logits: Tensor) -> Draw:
    """The draw for the token after `output_token_ids`, by transformers' rules wherever it has one.

    `logits` [vocab] are those of that token.
    """
    params = request.sampling_params
    token_ids = [*request.prompt_token_ids, *output_token_ids]
    scores = _with_penalties(logits, params, token_ids, output_token_ids)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k > 0:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        warpers.append(MinPLogitsWarper(params.min_p))
    kept = warpers(torch.tensor([token_ids]), scores.unsqueeze(0))[0]
    share = uniform(torch.tensor([params.seed]), torch.tensor([len(token_ids)]), torch.tensor([0]))
    return Draw(float(share), kept.double().softmax(dim=-1).cumsum(dim=-1))


def greedy_difference(
    request: GoldenRequest,
    expected: Sequence[int],
    got: Sequence[int],
    expected_best_two: Callable[[int], BestTwo],
    own_model: OwnModel,
) -> Difference | None:
    """Compare greedy answers; a near tie in `expected_best_two` of the output position excuses a difference."""
    position = first_difference(expected, got)
    if position is None:
        return None
    if position >= min(len(expected), len(got)):
        return _different_lengths(request, expected, got)
    theirs = expected_best_two(position)
    ours = best_two(own_model.next_logits([*request.prompt_token_ids, *expected[:position]]))
    is_excused = theirs.gap < NEAR_TIE and got[position] in theirs.token_ids
    evidence = f"expected from {theirs}; ours in one piece: {ours}"
    return Difference(request.name, position, expected[position], got[position], evidence, is_excused)


def sampled_difference(
    request: GoldenRequest, expected: Sequence[int], got: Sequence[int], own_model: OwnModel
) -> Difference | None:
    """Compare sampled answers of ours; a draw on the border of both tokens excuses a difference."""
    position = first_difference(expected, got)
    if position is None:
        return None
    if position >= min(len(expected), len(got)):
        return _different_lengths(request, expected, got)
    logits = own_model.next_logits([*request.prompt_token_ids, *expected[:position]])
    draw = draw_for(request, expected[:position], logits)
    one, other = expected[position], got[position]
    evidence = f"the draw is {draw.share:.9f}, {draw.describe(one)}, {draw.describe(other)}"
    return Difference(request.name, position, one, other, evidence, draw.is_at_border_between(one, other))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return where two lists part, which may be the end of the shorter one; None if they are equal."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def _different_lengths(request: GoldenRequest, expected: Sequence[int], got: Sequence[int]) -> Difference:
    position = min(len(expected), len(got))
    evidence = f"expected {len(expected)} tokens, got {len(got)}"
    ends = [(tokens[position] if position < len(tokens) else None) for tokens in (expected, got)]
    return Difference(request.name, position, ends[0], ends[1], evidence, is_excused=False)


def _with_penalties(
    logits: Tensor, params: SamplingParams, token_ids: Sequence[int], output_token_ids: Sequence[int]
) -> Tensor:
    scores = logits.float().unsqueeze(0)
    if params.repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(torch.tensor([token_ids]), scores)
    counts = torch.bincount(torch.tensor(output_token_ids, dtype=torch.int64), minlength=scores.shape[-1])
    return scores[0] - params.presence_penalty * (counts > 0) - params.frequency_penalty * counts
