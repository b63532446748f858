"""A static engine beside the dynamic one, on a tiny model."""

import pytest
import torch

from rayinfer import LLM, SamplingParams
from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.pool_size import count_static_blocks
from rayinfer.protocols import GenerationRequest, Sleep, Wake
from support.kernels.memory_use import memory_use_of
from support.tiny_models.tiny_checkpoints import make_tiny_llama

SETTINGS = {"dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 48, "max_model_len": 160, "block_size": 8}
PROMPTS = [
    "the quick brown fox",
    "a",
    "What is the capital of France? " * 5,
    "Once upon a time there was",
    "the quick brown fox",
    "def add(left, right):",
    "Die Straße ist länger als der Weg",
    "What is the capital of France? " * 5 + "And of Italy?",
    "x = 1",
]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=1.1, seed=1, max_tokens=25, logprobs=3),
    SamplingParams(temperature=0.7, seed=2, top_p=0.9, top_k=50, max_tokens=9, prompt_logprobs=2),
    SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=14),
    SamplingParams(temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.5, max_tokens=40, min_tokens=12),
    SamplingParams(temperature=0.9, seed=4, stop=["e", "qu"], max_tokens=30),
    SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0),
    SamplingParams(temperature=0.9, seed=5, min_p=0.02, logit_bias={40: 3.0}, max_tokens=1),
    SamplingParams(temperature=0.8, seed=6, typical_p=0.8, stop_token_ids=[70, 80, 90], max_tokens=60),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


def answers(folder, **settings):
    with LLM(str(folder), **SETTINGS | settings) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        for output in outputs:
            output.num_cached_tokens = 0  # which twin came first is not promised
        return outputs, llm.stats


def engine_of(folder, **settings):
    return build_engine(engine_config(model=str(folder), engine="static", **SETTINGS | settings), folder)


def request(request_id, *, prompt_len=10, max_tokens=20, **settings):
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)
    prompt = [(7 * i + len(request_id)) % 380 for i in range(prompt_len)]
    return GenerationRequest(request_id=request_id, prompt_token_ids=prompt, sampling_params=params, **settings)


def run(engine):
    tokens = {}
    while engine.has_unfinished_requests:
        for delta in engine.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
    return tokens


@pytest.fixture(scope="module")
def answers_of_the_dynamic_engine(folder):
    return answers(folder)[0]


@pytest.mark.parametrize("settings", [{}, {"enable_prefix_caching": False}, {"max_num_seqs": 1}], ids=str)
def test_it_answers_as_the_dynamic_engine_does(folder, settings, answers_of_the_dynamic_engine):
    ours, stats = answers(folder, engine="static", **settings)
    theirs = answers_of_the_dynamic_engine
    assert [_without_logprobs(output) for output in ours] == [_without_logprobs(output) for output in theirs]
    assert _logprobs_of(ours) == pytest.approx(_logprobs_of(theirs), abs=1e-4)
    assert stats.num_preemptions_total == stats.kv_blocks_used == 0


def _without_logprobs(output):
    return [(each.index, each.text, each.token_ids, each.finish_reason, each.stop_reason) for each in output.outputs]


def _logprobs_of(outputs):
    told = [output.prompt_logprobs for output in outputs] + [each.logprobs for o in outputs for each in o.outputs]
    return [place.logprob for places in told for tokens in places or () for place in (tokens or {}).values()]


def test_a_full_batch_of_the_longest_requests_comes_in_at_once_and_stays(folder):
    engine = engine_of(folder, enable_prefix_caching=False, max_num_batched_tokens=1000)
    for name in ("a", "ab", "abc", "abcd"):
        engine.add_request(request(name, prompt_len=159, max_tokens=1))
    engine.step()
    assert engine.stats.prompt_tokens_total == 4 * 159
    for name in ("a", "ab", "abc", "abcd", "abcde"):
        engine.add_request(request(name, prompt_len=100, max_tokens=60))
    engine.step()
    assert engine.stats.num_running == 4
    assert {name: len(tokens) for name, tokens in run(engine).items()}["abcde"] == 60
    assert engine.stats.num_preemptions_total == 0


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_decoding_step_asks_for_the_same_memory_and_keeps_none_whoever_is_still_there(folder):
    engine = engine_of(folder)
    for index, name in enumerate(("a", "ab", "abc")):
        engine.add_request(request(name, max_tokens=12 + 8 * index))
    for _ in range(4):  # the prompts are in, and whatever is taken at first use has been
        engine.step()
    uses = [memory_use_of(engine.step) for _ in range(20)]
    assert engine.stats.num_running == 1
    assert len(set(uses)) == 1
    assert uses[0].num_bytes_kept == 0
    assert uses[0].num_bytes > 0


@pytest.mark.usefixtures("one_thread")
def test_the_dynamic_engine_frees_memory_of_ended_requests(folder):
    # So the test above would see a difference.
    engine = build_engine(engine_config(model=str(folder), num_kv_blocks=99, **SETTINGS), folder)
    for index, name in enumerate(("a", "ab", "abc")):
        engine.add_request(request(name, max_tokens=12 + 8 * index))
    uses = [memory_use_of(engine.step) for _ in range(24)]
    assert uses[-1].num_bytes < uses[6].num_bytes


def test_a_request_that_matters_more_takes_a_row_and_the_other_comes_back(folder):
    alone = engine_of(folder)
    alone.add_request(request("a", max_tokens=30, priority=5))
    expected = run(alone)["a"]
    engine = engine_of(folder, max_num_seqs=1)
    engine.add_request(request("a", max_tokens=30, priority=5))
    tokens = {"a": [], "urgent": []}
    for _ in range(7):
        for delta in engine.step():
            tokens[delta.request_id] += delta.token_ids
    engine.add_request(request("urgent", max_tokens=5, priority=-5))
    rest = run(engine)
    assert tokens["a"] + rest["a"] == expected
    assert len(rest["urgent"]) == 5
    assert engine.stats.num_preemptions_total == 1


@pytest.mark.parametrize("level", [0, 1, 2])
def test_it_goes_on_as_before_after_sleeping(folder, level):
    engine = engine_of(folder)
    for name in ("a", "ab"):
        engine.add_request(request(name, max_tokens=30))
    expected = run(engine)
    for name in ("a", "ab"):
        engine.add_request(request(name, max_tokens=30))
    tokens = {}
    for _ in range(9):
        for delta in engine.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
    engine.control(Sleep(level))
    engine.control(Wake())
    rest = run(engine)
    assert {name: tokens[name] + rest[name] for name in tokens} == expected


@pytest.mark.parametrize(
    "settings", [{"num_kv_blocks": 9}, {"kv_cache_memory_bytes": 10**8}, {"memory_fraction": 0.5}], ids=str
)
def test_the_pool_cannot_be_sized_in_another_way(folder, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        engine_of(folder, **settings)


def test_a_batch_that_memory_cannot_hold_is_refused():
    config = engine_config(engine="static")
    with pytest.raises(ConfigError, match=r"64 requests at once of max_model_len 8192 tokens each need .* lower"):
        count_static_blocks(config, 8192, 16, 10**12, torch.device("cpu"), num_rows=64)
