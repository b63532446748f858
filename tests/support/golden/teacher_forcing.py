"""Greedy answers against transformers on the engine's own device, in float32.

One pass over a prompt and its answer gives the logits after each token. If the best of each is the answer's next token,
the answer is what transformers generates; and the passes need none of transformers' caches.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from rayinfer.engine.ranks.rank_coordinates import any_device
from rayinfer.models.encoder_decoder_config import Seq2SeqSettings
from rayinfer.models.model_config import read_model_config
from support.golden.golden_comparison import NEAR_TIE


class GreedyAnswer(NamedTuple):
    """A prompt, the tokens of its answer and the log probability of each."""

    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]


class Comparison(NamedTuple):
    """Differences from transformers, a line each, and the numbers of tokens compared."""

    differences: list[str]
    num_tokens: int
    num_near_ties: int  # tokens that are the second best there, by less than NEAR_TIE
    largest_error: float  # of a log probability


class ReferenceModel:
    """A checkpoint as transformers runs it, on the device that engines have here."""

    def __init__(self, folder: Path) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        self._device = any_device()
        config = read_model_config(folder)
        self._settings: Seq2SeqSettings | None = config.seq2seq
        self._forced_end = config.forced_end_token_id
        auto_class = AutoModelForCausalLM if self._settings is None else AutoModelForSeq2SeqLM
        model: PreTrainedModel = auto_class.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        )
        self._model = model.to(self._device).eval()

    @torch.inference_mode()
    def next_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        """The logits of every token of an answer, [num_tokens, vocab_size]."""
        if self._settings is not None:
            begun = [self._settings.start_token_id, *answer[:-1]]
            return self._model(input_ids=self._row(prompt), decoder_input_ids=self._row(begun)).logits[0]  # type: ignore[no-any-return]
        logits = self._model(input_ids=self._row([*prompt, *answer[:-1]]), use_cache=False).logits[0]
        return logits[len(prompt) - 1 :]  # type: ignore[no-any-return]

    def allowed_logits(self, logits: Tensor) -> Tensor:
        """Logits to choose the best from, without what the model's settings forbid in an answer and as its end."""
        bad = [] if self._settings is None else [ids[0] for ids in self._settings.bad_token_sequences if len(ids) == 1]
        allowed = logits.clone()
        allowed[:, bad] = float("-inf")
        if self._forced_end is not None:
            allowed[-1] = float("-inf")
            allowed[-1, self._forced_end] = 0.0
        return allowed

    def _row(self, token_ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(token_ids)], device=self._device)


def compare(answers: Mapping[str, GreedyAnswer], reference: ReferenceModel, *, tolerance: float = 1e-4) -> Comparison:
    """Hold every answer against the reference; `tolerance` is for log probabilities."""
    found: list[str] = []
    num_tokens, num_near_ties, largest = 0, 0, 0.0
    for name, answer in answers.items():
        logits = reference.next_logits(answer.prompt_token_ids, answer.token_ids).float()
        chosen = torch.tensor(list(answer.token_ids), device=logits.device)
        allowed = reference.allowed_logits(logits)
        gaps = allowed.max(dim=-1).values - allowed.gather(-1, chosen[:, None])[:, 0]
        expected = logits.log_softmax(dim=-1).gather(-1, chosen[:, None])[:, 0]
        errors = (expected - torch.tensor(answer.logprobs, device=logits.device)).abs()
        num_tokens += len(answer.token_ids)
        num_near_ties += int(((gaps > 0) & (gaps < NEAR_TIE)).sum())
        largest = max(largest, float(errors.max()))
        found += [
            f"{name!r}, output token {place}: got {token_id}, {gap:.2e} below the best, off by {error:.2e}"
            for place, (token_id, gap, error) in enumerate(
                zip(answer.token_ids, gaps.tolist(), errors.tolist(), strict=True)
            )
            if gap >= NEAR_TIE or not error <= tolerance
        ]
    return Comparison(found, num_tokens, num_near_ties, largest)
