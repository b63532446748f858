"""The real engine on a tiny model: continuations, bad numbers, and what the settings make of it."""

import pytest
import torch
from safetensors.torch import load_file

from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.optimization.mode_checks import check_quality
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from support.tiny_models.tiny_checkpoints import make_tiny_llama, save_weights

PROMPT = [9, 8, 7, 200, 6, 5, 31]
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    "seeded": SamplingParams(temperature=1.3, seed=8, max_tokens=20, ignore_eos=True),
    "penalized": SamplingParams(
        temperature=1.1, seed=9, repetition_penalty=1.5, frequency_penalty=0.7, max_tokens=20, min_tokens=15
    ),
    "greedy penalized": SamplingParams(temperature=0.0, presence_penalty=1.9, max_tokens=20, ignore_eos=True),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False)


def new_engine(folder, **settings):
    config = engine_config(model=str(folder), **{"num_kv_blocks": 32, "block_size": 8, "dtype": "float32"} | settings)
    return build_engine(config, folder)


def request(request_id, params, *, prompt=PROMPT, outputs=(), choice=0):
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        output_token_ids=list(outputs),
        sampling_params=params,
        choice=choice,
    )


def run(engine, *requests):
    """New tokens and finish reasons of all requests."""
    for each in requests:
        engine.add_request(each)
    tokens = {each.request_id: [] for each in requests}
    reasons = {}
    while engine.has_unfinished_requests:
        for delta in engine.step():
            tokens[delta.request_id] += delta.token_ids
            if delta.finish_reason:
                reasons[delta.request_id] = delta.finish_reason
    assert engine.stats.kv_blocks_used == 0
    return tokens, reasons


@pytest.fixture(scope="module")
def uninterrupted(folder):
    tokens, _ = run(new_engine(folder), *(request(name, params, choice=2) for name, params in PARAMS.items()))
    return tokens


@pytest.mark.parametrize("num_known", [1, 8, 9, 17])
@pytest.mark.parametrize("name", PARAMS)
def test_a_continuation_on_a_fresh_engine_equals_the_uninterrupted_run(name, num_known, folder, uninterrupted):
    whole = uninterrupted[name]
    assert len(whole) > num_known
    known = whole[:num_known]
    tokens, _ = run(new_engine(folder), request("again", PARAMS[name], outputs=known, choice=2))
    assert known + tokens["again"] == whole


def test_choices_of_one_seed_differ(folder):
    tokens, _ = run(new_engine(folder), *(request(f"{k}", PARAMS["seeded"], choice=k) for k in range(3)))
    assert len(set(map(tuple, tokens.values()))) == 3


def test_a_request_whose_logits_are_not_numbers_ends_alone(folder, tmp_path):
    poisoned = make_tiny_llama(tmp_path, tie=False)
    weights = load_file(poisoned / "model.safetensors")
    weights["model.embed_tokens.weight"][77] = float("nan")
    save_weights(poisoned, weights)
    good = request("good", PARAMS["greedy"])
    tokens, reasons = run(
        new_engine(poisoned),
        request("bad", PARAMS["greedy"], prompt=[5, 77, 6]),
        good,
        request("bad too", PARAMS["seeded"], prompt=[77]),
    )
    assert reasons == {"good": "length", "bad": "error", "bad too": "error"}
    wanted, _ = run(new_engine(folder), good)
    assert tokens == {"good": wanted["good"], "bad": [], "bad too": []}


def test_blocks_are_found_again_by_the_real_executor(folder):
    engine = new_engine(folder)
    long = [(5 * i) % 380 + 3 for i in range(50)]
    first, _ = run(engine, request("first", PARAMS["greedy"], prompt=long))
    second, _ = run(engine, request("second", PARAMS["greedy"], prompt=long))
    assert first["first"] == second["second"]
    assert engine.stats.cached_prompt_tokens_total == 48


def test_a_description_has_the_limits(folder):
    description = new_engine(folder).description
    assert description.name == str(folder)
    assert (description.max_model_len, description.vocab_size) == (256, 384)
    assert (description.kv_blocks_total, description.block_size) == (32, 8)


def test_the_models_end_tokens_end_an_answer(folder):
    hot = SamplingParams(temperature=2.0, seed=1, max_tokens=100)
    tokens, reasons = run(new_engine(folder, num_kv_blocks=320), *(request(f"{i}", hot, choice=i) for i in range(24)))
    ended = [request_id for request_id, reason in reasons.items() if reason == "stop"]
    assert ended
    assert all(tokens[request_id][-1] == 2 and 2 not in tokens[request_id][:-1] for request_id in ended)


def test_more_context_than_the_model_has_is_refused(folder):
    with pytest.raises(ConfigError, match="max_model_len 513 is above the model's 512"):
        new_engine(folder, max_model_len=513)


@pytest.fixture(scope="module")
def stretchable_folder(tmp_path_factory):
    rope = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}
    return make_tiny_llama(tmp_path_factory.mktemp("dynamic"), max_position_embeddings=64, rope_parameters=rope)


def test_a_rotary_scaling_makes_room_for_longer_sequences_when_it_is_asked_for(stretchable_folder):
    assert new_engine(stretchable_folder).description.max_model_len == 64
    assert new_engine(stretchable_folder, max_model_len=192).description.max_model_len == 192
    with pytest.raises(ConfigError, match="max_model_len 193 is above the model's 192"):
        new_engine(stretchable_folder, max_model_len=193)


def test_settings_and_not_memory_decide_how_positions_turn(stretchable_folder):
    answers = [
        run(new_engine(stretchable_folder, **settings), request("a", PARAMS["greedy"]))[0]
        for settings in ({"max_model_len": 192}, {"max_model_len": 192, "num_kv_blocks": 5}, {"max_model_len": 64})
    ]
    assert answers[0] == answers[1] != answers[2]


def test_threads_are_set_when_asked_for(folder):
    before = torch.get_num_threads()
    try:
        new_engine(folder, num_threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_pool_beyond_all_memory_is_refused_in_one_line(folder):
    with pytest.raises((ConfigError, ModelLoadError), match="num_kv_blocks") as caught:
        new_engine(folder, num_kv_blocks=10**12)
    assert "\n" not in str(caught.value)


def test_a_cache_of_eight_bits_takes_a_third_of_the_memory_and_changes_logits_little(folder):
    scored = SamplingParams(max_tokens=1, prompt_logprobs=0)
    memory = {"num_kv_blocks": None, "kv_cache_memory_bytes": 1 << 20}
    found = {}
    for kind in ("auto", "int8"):
        engine = new_engine(folder, kv_cache_dtype=kind, **memory)
        engine.add_request(request("scored", scored, prompt=list(range(20, 80))))
        (delta,) = engine.step()
        logprobs = [place[20 + i].logprob for i, place in enumerate(delta.prompt_logprobs) if place is not None]
        found[kind] = engine.description.kv_blocks_total, torch.tensor(logprobs)
    assert found["int8"][0] > 3 * found["auto"][0]  # a scale for each head of 16 numbers comes on top
    difference = (found["int8"][1] - found["auto"][1]).abs()
    assert 0 < difference.mean() < 0.05


def test_batch_invariance_is_promised_only_where_kernels_have_it(folder):
    new_engine(folder, deterministic=True).exit()
    with pytest.raises(ConfigError, match=r"deterministic must not be true with torch.float16 on a cpu"):
        new_engine(folder, deterministic=True, dtype="float16")


@pytest.mark.parametrize(
    ("mode", "settings"), [("int8-dynamic", {"quantization": "int8-dynamic"}), ("int8-kv", {"kv_cache_dtype": "int8"})]
)
def test_a_mode_that_was_measured_to_lose_too_much_has_to_be_allowed(mode, settings, folder, monkeypatch):
    monkeypatch.setitem(check_quality.__kwdefaults__, "measured", {"stories15m": {"int8-dynamic": 3.1, "int8-kv": 3.1}})
    with pytest.raises(ConfigError, match=f"{mode} makes perplexity 3.1 % worse"):
        new_engine(folder, **settings)
    new_engine(folder, **settings, allow_inaccurate_quantization=True).exit()


@pytest.mark.parametrize("overlaps", [None, False, True])
def test_steps_overlap_where_the_settings_say_so_and_by_themselves_on_a_gpu_alone(overlaps, folder):
    engine = new_engine(folder, async_scheduling=overlaps)
    assert engine.executor.supports_async_scheduling == (torch.cuda.is_available() if overlaps is None else overlaps)
    expected = run(new_engine(folder, async_scheduling=False), *(request(name, PARAMS[name]) for name in PARAMS))
    assert run(engine, *(request(name, PARAMS[name]) for name in PARAMS)) == expected
