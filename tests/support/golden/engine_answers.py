"""An engine's answers to a few greedy requests, for comparison with another engine."""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rayinfer.config import EngineConfig, engine_config
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.engine import Engine
from rayinfer.models.model_config import read_model_config
from rayinfer.outputs import TokenDelta
from rayinfer.protocols import GenerationRequest, Sleep, Wake
from rayinfer.sampling_params import SamplingParams

PROMPTS = ([9, 8, 7, 60, 6, 5, 31], [4] * 40, [1, 2, 3], list(range(5, 70)), [90], [3, 80] * 9, [11, 12, 13, 14, 15])
LENGTHS = (20, 7, 13, 3, 20, 9, 15)  # who ends early leaves its place to the next
LEAVING = "leaves"  # the request that is aborted in the middle
SOME_STEPS = 5
_COMMON: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "max_model_len": 100, "max_num_seqs": 3}


class Answers(NamedTuple):
    """Greedy tokens by request, and the log probability of each."""

    token_ids: dict[str, list[int]]
    logprobs: dict[str, list[float]]

    def note(self, delta: TokenDelta) -> None:
        """Take what a step has brought."""
        places = zip(delta.token_ids, delta.logprobs or (), strict=True)
        self.token_ids.setdefault(delta.request_id, []).extend(delta.token_ids)
        self.logprobs.setdefault(delta.request_id, []).extend(place[token_id].logprob for token_id, place in places)


def config_of(folder: Path, **settings: Any) -> EngineConfig:
    """Settings of a small engine, in which not all requests have room at once."""
    pool = {"num_kv_blocks": 32} if read_model_config(folder).seq2seq is None else {"max_num_batched_tokens": 64}
    return engine_config(model=str(folder), **_COMMON | pool | settings)


def greedy_requests() -> list[GenerationRequest]:
    """The requests that every engine is given; their tokens lie in a vocabulary of 96."""
    pairs = zip(PROMPTS, LENGTHS, strict=True)
    return [_request(str(number), prompt, length) for number, (prompt, length) in enumerate(pairs)]


def answers_of(
    folder: Path,
    *,
    sleeps: bool = False,
    build: Callable[[EngineConfig, Path], Engine] = build_engine,
    **settings: Any,
) -> Answers:
    """Run an engine to the end of all requests; it may sleep in between, at every level in turn."""
    engine = build(config_of(folder, **settings), folder)
    answers, levels, num_steps = Answers({}, {}), cycle((2, 1, 0)), 0
    try:
        engine.add_request(_request(LEAVING, [7] * 30, 40))
        for request in greedy_requests():
            engine.add_request(request)
        while engine.has_unfinished_requests:
            for delta in engine.step():
                answers.note(delta)
            num_steps += 1
            if num_steps == SOME_STEPS:
                engine.abort(LEAVING)
            if sleeps and num_steps % SOME_STEPS == 0:
                engine.control(Sleep(next(levels)))
                engine.control(Wake())
    finally:
        engine.exit()
    for by_request in answers:
        by_request.pop(LEAVING)
    return answers


def assert_alike(got: Answers, expected: Answers) -> None:
    """Compare tokens exactly, and log probabilities within 1e-4."""
    assert got.token_ids == expected.token_ids
    for name, logprobs in expected.logprobs.items():
        assert got.logprobs[name] == pytest.approx(logprobs, abs=1e-4)


def _request(name: str, prompt: list[int], length: int) -> GenerationRequest:
    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=2)
    return GenerationRequest(request_id=name, prompt_token_ids=prompt, sampling_params=params)
