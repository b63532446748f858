"""A real model paused, asleep and awake again within its answers; what it gives back is measured in pages."""

import ctypes
import gc
import shutil

import psutil
import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.errors import EngineDead, InvalidParameter, WrongEngineState
from support.tiny_models.tiny_checkpoints import make_tiny_llama

PROMPTS = [[9, 8, 7, 200, 6], [31, 5] * 20, [9, 8, 7, 200, 6, 77], [4, 80, 90, 3] * 9]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=1.2, seed=3, repetition_penalty=1.3, frequency_penalty=0.5, max_tokens=24),
    SamplingParams(temperature=0.9, seed=4, n=2, logprobs=2, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.0, prompt_logprobs=1, max_tokens=16, ignore_eos=True),
]
SETTINGS = {"dtype": "float32", "block_size": 8, "num_kv_blocks": 64, "max_num_batched_tokens": 256}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False)


def answers_of(folder, between_steps, **settings):
    """Tokens and logprobs of all requests, with an action on the LLM after each step."""
    with LLM(str(folder), **SETTINGS | settings) as llm:
        for index, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
            llm.add_request(prompt, params, request_id=f"{index}")
        outputs = {}
        while llm.has_unfinished_requests():
            outputs |= {output.request_id: output for output in llm.step()}
            between_steps(llm)
        assert llm.stats.kv_blocks_used == 0
        return outputs


@pytest.fixture(scope="module")
def undisturbed(folder):
    return answers_of(folder, lambda llm: None)


def check_same(outputs, undisturbed):
    assert outputs.keys() == undisturbed.keys()
    for request_id, output in outputs.items():
        wanted_output = undisturbed[request_id]
        check_places(output.prompt_logprobs, wanted_output.prompt_logprobs)
        for choice, wanted in zip(output.outputs, wanted_output.outputs, strict=True):
            assert (choice.token_ids, choice.text) == (wanted.token_ids, wanted.text)
            assert choice.finish_reason == wanted.finish_reason
            check_places(choice.logprobs, wanted.logprobs)


def check_places(places, wanted_places):
    """Equal log probabilities, as far as float32 goes."""
    assert (places is None) == (wanted_places is None)
    for place, wanted in zip(places or [], wanted_places or [], strict=True):
        assert (place or {}).keys() == (wanted or {}).keys()
        for token_id, known in (place or {}).items():
            assert known.rank == wanted[token_id].rank
            assert known.logprob == pytest.approx(wanted[token_id].logprob, abs=1e-4)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_answers_are_the_same_with_a_sleep_after_every_step(level, caching, folder, undisturbed):
    def nap(llm):
        llm.sleep(level)
        assert llm.stats.state == "asleep"
        llm.wake()

    check_same(answers_of(folder, nap, enable_prefix_caching=caching), undisturbed)


def test_answers_are_the_same_with_a_second_pool_and_a_tight_first_one(folder, undisturbed):
    block_bytes = 2 * 2 * 8 * 2 * 16 * 4  # 2 layers of keys and values, 8 tokens, 2 heads of 16 channels, float32
    seen = []
    answers = answers_of(
        folder,
        lambda llm: seen.append(llm.stats),
        num_kv_blocks=None,
        kv_cache_memory_bytes=14 * block_bytes,
        kv_offload_bytes=40 * block_bytes,
        max_model_len=100,
        max_num_batched_tokens=16,
    )
    assert (seen[-1].kv_blocks_total, seen[-1].kv_offload_blocks_total) == (14, 40)
    assert seen[-1].num_preemptions_total > 0
    assert max(stats.kv_offload_blocks_used for stats in seen) > 0
    check_same(answers, undisturbed)


def test_a_stream_goes_on_after_a_sleep(folder):
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(str(folder), **SETTINGS) as llm:
        whole = llm.generate([PROMPTS[0]], params, use_tqdm=False)[0].outputs[0]
        text = ""
        for number, output in enumerate(llm.stream(PROMPTS[0], params)):
            text += output.outputs[0].text
            llm.sleep(number % 3)
            llm.wake()
        assert text == whole.text


def test_generating_while_nothing_is_computed_is_refused_instead_of_waiting_for_ever(folder):
    with LLM(str(folder), **SETTINGS) as llm:
        stream = llm.stream(PROMPTS[0], PARAMS[0])
        next(stream)
        llm.pause()
        with pytest.raises(WrongEngineState, match="paused: it cannot generate"):
            llm.generate([PROMPTS[0]], PARAMS[0], use_tqdm=False)
        with pytest.raises(WrongEngineState, match="paused: it cannot stream"):
            list(stream)
        llm.add_request(PROMPTS[0], PARAMS[0])
        assert llm.step() == []
        llm.resume()
        while llm.has_unfinished_requests():
            last = llm.step()
        assert len(last[0].outputs[0].token_ids) == 24


def test_a_level_that_does_not_exist_is_refused(folder):
    with LLM(str(folder), **SETTINGS) as llm, pytest.raises(InvalidParameter, match="level must be 0, 1 or 2, got 3"):
        llm.sleep(3)


def test_a_checkpoint_that_vanished_ends_the_llm_with_its_name(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    with LLM(str(copy), **SETTINGS) as llm:
        llm.add_request(PROMPTS[0], PARAMS[0])
        llm.step()
        llm.sleep(2)
        (copy / "model.safetensors").unlink()
        with pytest.raises(EngineDead, match=r"could not wake from level 2: \w+: .*model\.safetensors"):
            llm.wake()
        for ask in (llm.step, llm.wake, lambda: llm.generate([PROMPTS[0]], use_tqdm=False)):
            with pytest.raises(EngineDead, match=r"model\.safetensors"):
                ask()
    with pytest.raises(EngineDead, match="exited"):
        llm.pause()


def test_other_weights_of_the_same_shape_are_taken_at_waking(folder, tmp_path):
    other = make_tiny_llama(tmp_path / "other", tie=False, seed=1)
    copy = shutil.copytree(folder, tmp_path / "copy")
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(str(copy), **SETTINGS) as llm, LLM(str(other), **SETTINGS) as wanted:
        llm.generate([PROMPTS[1]], params, use_tqdm=False)
        llm.sleep(2)
        shutil.copy(other / "model.safetensors", copy / "model.safetensors")
        llm.wake()
        new, old = (each.generate([PROMPTS[1]], params, use_tqdm=False)[0] for each in (llm, wanted))
        assert new.outputs[0].token_ids == old.outputs[0].token_ids


def test_another_model_at_waking_is_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    with LLM(str(copy), **SETTINGS) as llm:
        llm.sleep(2)
        make_tiny_llama(copy, tie=False, layers=3)
        with pytest.raises(EngineDead, match=r"config\.json is not what it was"):
            llm.wake()


# What is given back


def rss():
    return psutil.Process().memory_info().rss


def rss_in_use():
    """Resident bytes without what this process freed and its allocator still holds, also from other tests."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return rss()


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory):
    """A model of 40 MB, nearly all of it embedding, whose keys and values take 16 KiB a token."""
    return make_tiny_llama(
        tmp_path_factory.mktemp("wide"), vocab_size=40_000, hidden=256, heads=8, kv_heads=8, head_dim=128
    )


def test_sleeping_gives_pages_back_and_waking_takes_them_again(wide_folder):
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    prompts = [[5 + number] * 250 for number in range(8)]
    weights_bytes, written_bytes = (wide_folder / "model.safetensors").stat().st_size, 2000 * 16 * 1024
    with LLM(str(wide_folder), dtype="float32", kv_cache_memory_bytes=200 << 20, max_model_len=512) as llm:
        wanted = llm.generate(prompts, params, use_tqdm=False)
        llm.add_request(prompts[3], params)
        llm.step()
        awake = rss_in_use()
        llm.sleep(1)
        assert awake - rss() > 0.7 * written_bytes
        llm.wake()
        llm.step()
        awake = rss_in_use()
        llm.sleep(2)
        asleep = rss()
        assert awake - asleep > 0.8 * weights_bytes
        llm.wake()
        # Not yet the blocks that were in use, which the next step computes again.
        assert rss() - asleep > 0.8 * weights_bytes
        while llm.has_unfinished_requests():
            last = llm.step()
        again = llm.generate(prompts[:2], params, use_tqdm=False)
        for output, before in zip([last[0], *again], [wanted[3], *wanted[:2]], strict=True):
            assert output.outputs[0].token_ids == before.outputs[0].token_ids


def test_quantized_weights_in_mapped_memory_are_given_back_and_found_again(tmp_path, kernel_folder, monkeypatch):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernels").symlink_to(kernel_folder)
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path / "cache"))
    folder = make_tiny_llama(tmp_path / "llama", hidden=256, max_position_embeddings=32)
    settings = {"quantization": "int4", "allow_inaccurate_quantization": True, "num_kv_blocks": 64, "num_threads": 1}
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with LLM(str(folder), **settings) as llm:
        before = llm.generate(PROMPTS[:1], greedy)[0].outputs[0].token_ids
        assert is_mapped(tmp_path / "cache")
        for level in (1, 2):
            llm.sleep(level)
            assert is_mapped(tmp_path / "cache") == (level == 1)
            llm.wake()
            assert llm.generate(PROMPTS[:1], greedy)[0].outputs[0].token_ids == before


def is_mapped(folder):
    return any(each.path.startswith(str(folder / "packed")) for each in psutil.Process().memory_maps())
