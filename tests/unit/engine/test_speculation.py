"""Speculation on real engines of tiny models: where drafts come from, and that they change no answer."""

import pytest

from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from support.tiny_models.tiny_checkpoints import make_tiny_llama

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False)


def new_engine(folder, **settings):
    sizes = {"num_kv_blocks": 64, "block_size": 8, "dtype": "float32", "num_threads": 1}
    return build_engine(engine_config(model=str(folder), **sizes | settings), folder)


def answers(engine, *params, tenant=""):
    """Answer one prompt for each of the parameters, all at once."""
    for number, each in enumerate(params):
        prompt = [9, 8, 7, 200, 6, 5, 31 + number]
        engine.add_request(
            GenerationRequest(request_id=str(number), prompt_token_ids=prompt, sampling_params=each, tenant=tenant)
        )
    tokens = {str(number): [] for number in range(len(params))}
    while engine.has_unfinished_requests:
        for delta in engine.step():
            tokens[delta.request_id] += delta.token_ids
    return list(tokens.values())


@pytest.mark.parametrize(("memory", "is_kept"), [({}, True), ({"recent_answers_bytes": 0}, False)])
def test_a_question_that_is_asked_again_is_answered_by_drafts_of_the_first_answer(folder, memory, is_kept):
    expected = answers(new_engine(folder), GREEDY, SEEDED)
    engine = new_engine(folder, speculation=7, **memory)
    assert answers(engine, GREEDY, SEEDED) == expected
    before = engine.stats.accepted_draft_tokens_total
    assert answers(engine, GREEDY, SEEDED, tenant="another") == expected
    others = engine.stats.accepted_draft_tokens_total - before
    assert answers(engine, GREEDY, SEEDED, tenant="another") == expected
    again = engine.stats.accepted_draft_tokens_total - before - others
    assert others == before
    assert (again >= before + 20) == is_kept
