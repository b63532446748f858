"""The engine on tiny encoder-decoders: the tokens of transformers, alone, together, after every interruption."""

import pytest

from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.errors import ConfigError, InvalidParameter, PromptTooLong
from rayinfer.protocols import GenerationRequest, Sleep, Wake
from rayinfer.sampling_params import SamplingParams
from support.golden.encoder_decoder_runs import END, PAD, make_tiny_marian, make_tiny_t5, transformers_tokens

SOURCES = {str(length): [(5 * i * i + 2) % 95 for i in range(length)] for length in (70, 1, 23, 8, 40)}
SETTINGS = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 100}
GREEDY = SamplingParams(temperature=0.0, max_tokens=64)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return make_tiny_t5(tmp_path_factory.mktemp("t5"), feed_forward_proj="gated-gelu", owns_head=True)


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    return make_tiny_marian(tmp_path_factory.mktemp("marian"))


@pytest.fixture(params=[False, True], ids=["waiting", "overlapping"], autouse=True)
def overlaps(request, monkeypatch):
    """Every test has engines that wait for each step, then engines that do not."""
    monkeypatch.setitem(SETTINGS, "async_scheduling", request.param)


def engine_of(folder, **settings):
    return build_engine(engine_config(model=str(folder), **SETTINGS | settings), folder)


def request(source, params=GREEDY, *, request_id=None, outputs=(), **settings):
    return GenerationRequest(
        request_id=request_id or source,
        prompt_token_ids=SOURCES[source],
        output_token_ids=list(outputs),
        sampling_params=params,
        **settings,
    )


def run(engine, *requests):
    """New tokens of all requests, each of which must end."""
    for each in requests:
        engine.add_request(each)
    tokens, reasons = {}, {}
    while engine.has_unfinished_requests:
        for delta in engine.step():
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                reasons[delta.request_id] = delta.finish_reason
    assert tokens.keys() == reasons.keys()
    return tokens


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_greedy_answers_are_those_of_transformers_in_one_batch(name, request_fixture):
    folder = request_fixture(name)
    together = run(engine_of(folder), *map(request, SOURCES))
    for source, token_ids in SOURCES.items():
        assert together[source] == transformers_tokens(folder, token_ids, 64)


@pytest.fixture
def request_fixture(request):
    return request.getfixturevalue


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_each_is_answered_alike_alone_and_together(name, request_fixture):
    folder = request_fixture(name)
    params = {
        "70": SamplingParams(temperature=1.2, seed=1, max_tokens=40, ignore_eos=True),
        "1": SamplingParams(temperature=0.0, repetition_penalty=1.5, max_tokens=30, ignore_eos=True),
        "23": SamplingParams(temperature=0.9, seed=2, top_p=0.8, frequency_penalty=0.7, max_tokens=50, ignore_eos=True),
        "8": SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
        "40": SamplingParams(temperature=1.0, seed=3, logit_bias={9: 2.0}, max_tokens=60),
    }
    together = run(engine_of(folder), *(request(source, params[source]) for source in SOURCES))
    engine = engine_of(folder, max_num_seqs=1)
    for source in SOURCES:
        assert run(engine, request(source, params[source])) == {source: together[source]}


def test_an_answer_ends_by_force_where_the_checkpoint_says_so_and_never_holds_padding(marian):
    engine = engine_of(marian)
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=0, logit_bias={PAD: 100.0})
    engine.add_request(request("23", params))
    deltas = [delta for _ in range(5) for delta in engine.step()]
    tokens = [token_id for delta in deltas for token_id in delta.token_ids]
    assert tokens[-1] == END
    assert PAD not in tokens
    assert deltas[-1].finish_reason == "length"  # it had not come to its end
    assert list(deltas[-1].logprobs[0]) == [END]


def test_an_answer_goes_on_from_what_is_there(t5):
    whole = run(engine_of(t5), request("23", SamplingParams(temperature=1.0, seed=4, max_tokens=30, ignore_eos=True)))
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=30, ignore_eos=True)
    rest = run(engine_of(t5), request("23", params, outputs=whole["23"][:11]))
    assert rest["23"] == whole["23"][11:]


def test_a_source_is_read_again_after_its_row_was_given_away(t5):
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    expected = run(engine_of(t5), request("70", params))["70"]
    engine = engine_of(t5, max_num_seqs=1)
    engine.add_request(request("70", params, priority=5))
    begun = [token_id for _ in range(10) for delta in engine.step() for token_id in delta.token_ids]
    rest = run(engine, request("8", params, priority=-5))
    assert begun + rest["70"] == expected
    assert engine.stats.num_preemptions_total == 1


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sources_outlast_sleep(t5, level):
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    expected = run(engine_of(t5), request("70", params), request("8", params))
    engine = engine_of(t5)
    begun = {}
    for each in ("70", "8"):
        engine.add_request(request(each, params))
    for _ in range(7):
        for delta in engine.step():
            begun.setdefault(delta.request_id, []).extend(delta.token_ids)
    engine.control(Sleep(level))
    engine.control(Wake())
    rest = run(engine)
    assert {source: begun[source] + rest[source] for source in begun} == expected


def test_equal_answers_to_different_sources_are_no_cached_prefixes(t5):
    engine = engine_of(t5, enable_prefix_caching=True)
    run(engine, request("70", SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True, allowed_token_ids=[9])))
    goes_on = request("8", outputs=[9] * 48)
    assert run(engine, goes_on) == run(engine_of(t5), goes_on)
    assert engine.stats.cached_prompt_tokens_total == 0


def test_choices_of_one_request_differ(t5):
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=30, ignore_eos=True)
    answers = run(engine_of(t5), *(request("8", params, request_id=f"8/{k}", choice=k) for k in range(3)))
    assert len({tuple(answer) for answer in answers.values()}) == 3


def test_the_tokens_of_sources_are_counted_as_prompts(t5):
    engine = engine_of(t5)
    run(engine, request("70"), request("8"))
    assert engine.stats.prompt_tokens_total == 78


def test_a_source_may_be_as_long_as_the_longest_answer(t5):
    engine = engine_of(t5, max_model_len=70)
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    assert len(run(engine, request("70", params))["70"]) == 69  # behind the token that begins it
    with pytest.raises(PromptTooLong, match="at most 69 tokens"):
        engine_of(t5, max_model_len=69).add_request(request("70"))


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "prompt must not be empty"),
        ([96], {}, "token ids from 0 to 95"),
        ([5], {"prompt_logprobs": 1}, "prompt_logprobs must be null"),
        ([5], {"max_tokens": 0}, "max_tokens must be at least 1"),
    ],
)
def test_what_an_encoder_cannot_do_is_refused(t5, prompt, params, message):
    wrong = GenerationRequest(request_id="x", prompt_token_ids=prompt, sampling_params=SamplingParams(**params))
    with pytest.raises(InvalidParameter, match=message):
        engine_of(t5).add_request(wrong)


def test_the_description_names_padding_as_never_generated(marian):
    assert engine_of(marian).description.bad_token_sequences == ((PAD,),)


def test_its_pool_cannot_be_sized_in_another_way(t5):
    with pytest.raises(ConfigError, match="num_kv_blocks must be left out"):
        engine_of(t5, num_kv_blocks=9)
