"""Tokens that transformers generates, and the margin of each choice."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from support.golden.golden_comparison import BestTwo, GoldenRequest, best_two

BATCH = 10


class Reference(NamedTuple):
    """The golden tokens, and the two best at each place."""

    token_ids: list[int]
    best_two: list[BestTwo]


def greedy_references(
    model: PreTrainedModel, requests: Sequence[GoldenRequest], num_tokens: int
) -> dict[str, Reference]:
    """Continue every prompt by so many tokens; by name. The model must know no end token.

    Prompts of similar length run together, which is several times faster.
    """
    by_length = sorted(requests, key=lambda request: len(request.prompt_token_ids))
    references = {}
    for start in range(0, len(by_length), BATCH):
        together = by_length[start : start + BATCH]
        with one_thread():
            generated = _generate_together(model, [request.prompt_token_ids for request in together], num_tokens)
        references |= {request.name: each for request, each in zip(together, generated, strict=True)}
    return references


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch have one thread for a while.

    Threads that share their cores with other processes wait for each other at every small operation, which may cost
    fifty times the work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _generate_together(model: PreTrainedModel, prompts: list[list[int]], num_tokens: int) -> list[Reference]:
    """Generate with the shorter prompts filled up at their left, out of the attention's sight."""
    width = max(len(prompt) for prompt in prompts)
    generated = model.generate(
        torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts]),
        attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        pad_token_id=0,
        max_new_tokens=num_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    logits = torch.stack(generated.logits, dim=1)  # [prompts, num_tokens, vocab]
    return [
        Reference(token_ids, [best_two(position) for position in positions])
        for token_ids, positions in zip(generated.sequences[:, width:].tolist(), logits, strict=True)
    ]
