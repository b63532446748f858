"""Greedy runs on an engine of one rank, which loads few packages, with tokens and log probabilities."""

from collections.abc import Callable, Mapping, Sequence

from rayinfer.engine.loop.engine import Engine
from rayinfer.outputs import TokenDelta
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from support.golden.teacher_forcing import GreedyAnswer


def greedy_answers(
    engine: Engine,
    prompts: Mapping[str, Sequence[int]],
    num_tokens: int,
    *,
    after_step: Callable[[Engine], None] = lambda engine: None,
) -> dict[str, GreedyAnswer]:
    """Continue every prompt by so many tokens; by name."""
    for name, prompt in prompts.items():
        engine.add_request(_request(name, prompt, num_tokens))
    token_ids: dict[str, list[int]] = {name: [] for name in prompts}
    logprobs: dict[str, list[float]] = {name: [] for name in prompts}
    while engine.has_unfinished_requests:
        for delta in engine.step():
            token_ids[delta.request_id] += delta.token_ids
            logprobs[delta.request_id] += _chosen(delta)
        after_step(engine)
    assert {len(tokens) for tokens in token_ids.values()} == {num_tokens}
    return {name: GreedyAnswer(prompt, token_ids[name], logprobs[name]) for name, prompt in prompts.items()}


def _chosen(delta: TokenDelta) -> list[float]:
    places = zip(delta.token_ids, delta.logprobs or (), strict=True)
    return [place[token_id].logprob for token_id, place in places]


def _request(name: str, prompt: Sequence[int], num_tokens: int) -> GenerationRequest:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=0)
    return GenerationRequest(request_id=name, prompt_token_ids=list(prompt), sampling_params=params)
