"""Speculation on real engines of tiny models: where drafts come from, and that they change no answer."""

import pytest

from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.errors import ConfigError, ModelLoadError, ModelNotFound
from rayinfer.protocols import GenerationRequest, Sleep, Wake
from rayinfer.sampling_params import SamplingParams
from support.tiny_models.tiny_checkpoints import make_tiny_llama, save_tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A smaller model of the same tokenizer."""
    return make_tiny_llama(tmp_path_factory.mktemp("other"), hidden=32, layers=1, heads=2, kv_heads=1, seed=3)


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


@pytest.mark.parametrize(
    ("settings", "said", "drafts"),
    [
        ({}, "", False),
        ({"speculation": "auto"}, "speculation auto of repeated text", True),
        ({"async_scheduling": True}, "", False),
        (
            {"async_scheduling": True, "speculation": 3},
            "speculation 3 of repeated text, which waits for each step in spite of async_scheduling",
            True,
        ),
        (
            {"engine": "static", "num_kv_blocks": None, "max_model_len": 64, "max_num_seqs": 2, "speculation": "auto"},
            "no speculation (steps of a fixed batch)",
            False,
        ),
    ],
    ids=str,
)
def test_an_engine_says_whether_it_speculates(settings, said, drafts, folder):
    engine = new_engine(folder, **settings)
    assert engine.description.speculation == said
    assert said in engine.description.capacity
    expected = answers(new_engine(folder), GREEDY)
    assert [answers(engine, GREEDY) for _ in range(2)] == [expected] * 2
    assert (engine.stats.accepted_draft_tokens_total > 0) == drafts


def test_a_draft_model_that_is_the_model_is_always_right(folder):
    greedy = [GREEDY] * 5
    engine = new_engine(folder, draft_model=str(folder), speculation=4)
    assert answers(engine, *greedy) == answers(new_engine(folder), *greedy)
    stats = engine.stats
    assert stats.accepted_draft_tokens_total == stats.draft_tokens_total > 5 * 24 * 0.7
    assert stats.num_steps_total == 1 + 5  # the prompts, and up to five tokens a step


@pytest.mark.parametrize("settings", [{}, {"num_kv_blocks": 9, "max_num_batched_tokens": 16}], ids=["roomy", "tight"])
def test_another_draft_model_changes_no_answer(settings, folder, other):
    params = [GREEDY, SEEDED, GREEDY, SEEDED]
    expected = answers(new_engine(folder), *params)
    engine = new_engine(folder, draft_model=str(other), speculation="auto", **settings)
    assert answers(engine, *params) == expected
    stats = engine.stats
    assert stats.draft_tokens_total > stats.accepted_draft_tokens_total
    if settings:
        assert stats.num_preemptions_total > 0


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_draft_model_sleeps_and_wakes_with_the_engine(level, folder):
    engine = new_engine(folder, draft_model=str(folder), speculation=3)
    expected = answers(engine, GREEDY)
    before = engine.stats.draft_tokens_total
    engine.control(Sleep(level))
    engine.control(Wake())
    assert answers(engine, GREEDY) == expected
    stats = engine.stats
    assert stats.accepted_draft_tokens_total == stats.draft_tokens_total == 2 * before


def test_the_blocks_of_a_draft_model_are_counted(folder, other):
    memory = {"num_kv_blocks": None, "kv_cache_memory_bytes": 1 << 20}
    alone, twice = new_engine(folder, **memory), new_engine(folder, draft_model=str(folder), **memory)
    assert twice.stats.kv_blocks_total == alone.stats.kv_blocks_total // 2
    third = new_engine(folder, draft_model=str(other), **memory).stats.kv_blocks_total
    assert twice.stats.kv_blocks_total < third < alone.stats.kv_blocks_total


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "static", "num_kv_blocks": None}, "draft_model needs engine 'dynamic'"),
        ({"async_scheduling": True}, "draft_model must be left out with async_scheduling"),
        ({"tensor_parallel_size": 2}, "draft_model needs an engine of one rank, this one has 2"),
        ({"pipeline_parallel_size": 2}, "draft_model needs an engine of one rank, this one has 2"),
    ],
    ids=str,
)
def test_engines_that_cannot_have_a_draft_model_say_so(settings, message, folder, other):
    with pytest.raises(ConfigError, match=message):
        new_engine(folder, draft_model=str(other), **settings)


def test_a_draft_model_needs_the_same_tokenizer(folder, tmp_path):
    another = make_tiny_llama(tmp_path / "another", tie=False)
    save_tokenizer(another, 300)
    with pytest.raises(ConfigError, match="has another tokenizer than the model: 84 tokens differ"):
        new_engine(folder, draft_model=str(another))
    (another / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"another.tokenizer.json is missing"):
        new_engine(folder, draft_model=str(another))
    with pytest.raises(ModelNotFound, match="there is no model"):
        new_engine(folder, draft_model=str(tmp_path / "nothing"))
