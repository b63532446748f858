"""Tokens that transformers chooses, and the margin of each choice.

One pass over a prompt and its answer gives the logits after each token, which is several times faster than generating.
As long as the best of each is the answer's next token, the answer is what transformers generates.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from support.golden.golden_comparison import BestTwo, GoldenRequest, best_two, first_difference


class Reference(NamedTuple):
    """The golden tokens, as far as they follow from the answer's own, and the two best at each place."""

    token_ids: list[int]
    best_two: list[BestTwo]


def greedy_references(
    model: PreTrainedModel, requests: Sequence[GoldenRequest], answers: Mapping[str, Sequence[int]]
) -> dict[str, Reference]:
    """Choose greedily after each token of every answer; by the request's name.

    A reference ends with the first token that is not the answer's: what follows would depend on it.
    """
    with one_thread():
        return {request.name: _reference(model, request, answers[request.name]) for request in requests}


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


@torch.inference_mode()
def _reference(model: PreTrainedModel, request: GoldenRequest, answer: Sequence[int]) -> Reference:
    token_ids = torch.tensor([[*request.prompt_token_ids, *answer[:-1]]])
    logits = model(token_ids, use_cache=False, logits_to_keep=len(answer)).logits[0]  # [len(answer), vocab]
    choices = [best_two(position) for position in logits]
    chosen = [choice.token_ids[0] for choice in choices]
    parting = first_difference(chosen, answer)
    end = len(chosen) if parting is None else parting + 1
    return Reference(chosen[:end], choices[:end])
