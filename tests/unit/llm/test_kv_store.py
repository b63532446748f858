"""A real model whose engines share a machine's KV block store: the same bits with it and without."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.kv_store.store_files import list_stores
from support.tiny_models.tiny_checkpoints import make_tiny_llama

SHARED = [5 + 7 * i % 90 for i in range(70)]
PROMPTS = [SHARED, [*SHARED[:41], 9, 8], [*SHARED, 200, 6, 77], [4, 80, 90, 3] * 9]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=1.2, seed=3, repetition_penalty=1.3, max_tokens=12, logprobs=1),
    SamplingParams(temperature=0.9, seed=4, n=2, logprobs=2, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.0, prompt_logprobs=1, max_tokens=8, ignore_eos=True, logprobs=1),
]
SETTINGS = {"block_size": 8, "num_kv_blocks": 64, "max_num_batched_tokens": 64}
STORE = {"kv_store_gib": 0.01, "kv_store_persists": True}


@pytest.fixture(autouse=True)
def shared_memory(tmp_path, monkeypatch) -> Path:
    """Keep blocks in a folder of the test's own."""
    folder = tmp_path / "shared"
    monkeypatch.setenv("RAYINFER_SHARED_MEMORY", str(folder))
    return folder


def answers(llm):
    """Return everything that clients see of all requests."""
    outputs = [
        llm.generate([prompt], [params], use_tqdm=False)[0] for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]
    return [
        (output.prompt_logprobs, [(choice.token_ids, choice.logprobs, choice.text) for choice in output.outputs])
        for output in outputs
    ]


def flush(llm):
    """Wait until everything is in the store."""
    deadline = time.monotonic() + 20
    while llm.stats.kv_blocks_used and time.monotonic() < deadline:
        time.sleep(0.01)
        llm.engine.take_block_events()
    assert llm.stats.kv_blocks_used == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "kv_cache_dtype": "int8", "allow_inaccurate_quantization": True},
        {"dtype": "float32", "async_scheduling": True},
    ],
    ids=["float32", "bfloat16", "int8-kv", "async"],
)
def test_answers_from_another_engines_blocks_are_the_same_bits(settings, folder):
    with LLM(str(folder), **SETTINGS, **settings, enable_prefix_caching=False) as llm:
        undisturbed = answers(llm)
    with LLM(str(folder), **SETTINGS, **settings, **STORE) as first:
        assert answers(first) == undisturbed
        with LLM(str(folder), **SETTINGS, **settings, **STORE) as second:  # while the first one lives
            assert answers(second) == undisturbed
            assert second.stats.kv_store.memory_hit_tokens_total >= 64
        flush(first)
    with LLM(str(folder), **SETTINGS, **settings, **STORE) as third:  # after both
        assert answers(third) == undisturbed
        stats = third.stats.kv_store
        assert (stats.stored_blocks_total, stats.damaged_blocks_total) == (0, 0)
        assert third.stats.cached_prompt_tokens_total > 100


def test_blocks_on_the_disk_outlast_shared_memory(folder, tmp_path, shared_memory):
    settings = (
        SETTINGS | STORE | {"dtype": "float32", "kv_store_disk_gib": 0.02, "kv_store_folder": str(tmp_path / "disk")}
    )
    with LLM(str(folder), **settings) as llm:
        wanted = answers(llm)
    for file in shared_memory.iterdir():  # as a reboot does
        file.unlink()
    with LLM(str(folder), **settings) as llm:
        assert answers(llm) == wanted
        stats = llm.stats.kv_store
        assert stats.disk_hit_tokens_total >= 64
    assert [store.model for store in list_stores(tmp_path / "disk")] == [str(folder)]


def test_shared_memory_is_freed_when_its_last_engine_ends(folder, tmp_path, shared_memory):
    settings = SETTINGS | {"dtype": "float32", "kv_store_gib": 0.01}
    params = SamplingParams(max_tokens=2)
    with LLM(str(folder), **settings) as first:
        first.generate([SHARED], params, use_tqdm=False)
        with LLM(str(folder), **settings) as second:
            second.generate([SHARED], params, use_tqdm=False)
        flush(first)
        first.sleep(2)
        assert len(list_stores(shared_memory)) == 1
        first.wake()
        assert first.generate([SHARED], params, use_tqdm=False)[0].num_cached_tokens >= 64
    assert list(shared_memory.iterdir()) == []


def test_other_weights_types_and_block_sizes_have_stores_of_their_own(folder, tmp_path, shared_memory):
    other = make_tiny_llama(tmp_path / "other", tie=True)
    variants = [{}, {"dtype": "bfloat16"}, {"block_size": 16}, {"max_model_len": 128}]
    for number, variant in enumerate(variants):
        with LLM(str(folder), **SETTINGS | STORE | {"dtype": "float32"} | variant) as llm:
            llm.generate([SHARED], SamplingParams(max_tokens=2), use_tqdm=False)
            assert llm.stats.cached_prompt_tokens_total == 0, variant
        assert len(list_stores(shared_memory)) == number + 1
    with LLM(str(other), **SETTINGS | STORE | {"dtype": "float32"}) as llm:
        llm.generate([SHARED], SamplingParams(max_tokens=2), use_tqdm=False)
        assert llm.stats.cached_prompt_tokens_total == 0


def test_weights_that_change_during_a_sleep_find_none_of_the_old_blocks(folder, tmp_path):
    changing = make_tiny_llama(tmp_path / "changing", tie=False)
    others = make_tiny_llama(tmp_path / "others", tie=False, seed=9)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with LLM(str(others), **SETTINGS, dtype="float32") as llm:
        wanted = llm.generate([SHARED], params, use_tqdm=False)[0].outputs[0].token_ids
    with LLM(str(changing), **SETTINGS, **STORE, dtype="float32") as llm:
        before = llm.generate([SHARED], params, use_tqdm=False)[0].outputs[0].token_ids
        flush(llm)
        llm.sleep(2)
        (others / "model.safetensors").replace(changing / "model.safetensors")
        llm.wake()
        after = llm.generate([SHARED], params, use_tqdm=False)[0]
        assert after.outputs[0].token_ids == wanted != before
        assert after.num_cached_tokens == 0


ENGINE = """
import json, sys
from rayinfer import LLM, SamplingParams
folder, settings, prompts = json.loads(sys.argv[1])
with LLM(folder, **settings) as llm:
    print("ready", flush=True)
    for _ in range(1000):
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True), use_tqdm=False)
"""


def test_an_engine_killed_in_its_work_leaves_whole_blocks(folder, shared_memory):
    settings = SETTINGS | STORE | {"dtype": "float32"}
    prompts = [[*SHARED[:30], start, *SHARED] for start in range(20)]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    with LLM(str(folder), **SETTINGS, dtype="float32") as llm:
        wanted = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    arguments = json.dumps([str(folder), settings, prompts])
    process = subprocess.Popen([sys.executable, "-c", ENGINE, arguments], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 30
        while (
            not any(store.num_bytes > 200_000 for store in list_stores(shared_memory)) and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        time.sleep(random.random() * 0.1)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert [store.is_in_use for store in list_stores(shared_memory)] == [False]
    with LLM(str(folder), **settings) as llm:
        assert [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)] == wanted
        assert llm.stats.kv_store.memory_hit_tokens_total > 0
        assert llm.stats.kv_store.damaged_blocks_total == 0
