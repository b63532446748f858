"""A real checkpoint in float32 on a GPU against transformers on the same GPU, in every way that a request can run.

RAYINFER_TEST_MODEL names its folder; `tests/support/tiny_models/carried_model.py` makes one where there is no network.
"""

import itertools
import os
from pathlib import Path

import pytest

from rayinfer.config import engine_config
from rayinfer.engine.build_single_rank import build_one_rank_engine
from rayinfer.protocols import Sleep, Wake
from rayinfer.tokenization.tokenizer import Tokenizer
from support.golden.golden_prompts import GOLDEN_PROMPTS
from support.golden.greedy_runs import greedy_answers
from support.golden.teacher_forcing import ReferenceModel, compare
from support.tiny_models.tiny_checkpoints import make_tiny_llama

NUM_TOKENS = 48
TOLERANCE = 3e-4  # of log probabilities: rounding grows over thirty layers
MODEL = os.environ.get("RAYINFER_TEST_MODEL")
ROOMY = {"num_kv_blocks": 1600, "max_num_seqs": 64, "max_num_batched_tokens": 8192}
TIGHT = {"num_kv_blocks": 72, "max_num_seqs": 64}
WAYS = {
    "one batch": ROOMY,
    "one batch without graphs": ROOMY | {"enforce_eager": True},
    "steps one after the other": ROOMY | {"async_scheduling": False},
    "one at a time": ROOMY | {"max_num_seqs": 1},
    "chunks of 16 tokens": ROOMY | {"max_num_batched_tokens": 16, "enable_prefix_caching": False},
    "a static engine": {"engine": "static", "max_num_seqs": 16},
    "preempted": TIGHT,
    "swapped": TIGHT | {"kv_offload_bytes": 256 << 20},
}


def open_engine(folder, **settings):
    limits = {"dtype": "float32", "num_threads": 1, "max_model_len": 512}
    return build_one_rank_engine(engine_config(model=str(folder), **limits | settings), folder)


def prompts_of(folder, count):
    tokenizer = Tokenizer.from_folder(folder)
    return {prompt.name: tokenizer.encode(prompt.text) for prompt in GOLDEN_PROMPTS[:count]}


def sleep_every(num_steps):
    steps, levels = itertools.count(1), itertools.cycle((1, 2, 0))

    def rest(engine):
        if next(steps) % num_steps == 0:
            engine.control(Sleep(next(levels)))
            engine.control(Wake())

    return rest


def check(answers, reference):
    found = compare(answers, reference, tolerance=TOLERANCE)
    print(f"{found.num_tokens} tokens, {found.num_near_ties} near ties, off by {found.largest_error:.1e} at most")
    assert found.differences == []


@pytest.fixture(scope="module")
def folder():
    if not MODEL:
        pytest.skip("RAYINFER_TEST_MODEL names no model folder")
    return Path(MODEL)


@pytest.fixture(scope="module")
def reference(folder):
    return ReferenceModel(folder)


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_fifty_prompts_are_answered_as_by_transformers(way, folder, reference):
    engine = open_engine(folder, **WAYS[way])
    try:
        check(greedy_answers(engine, prompts_of(folder, 50), NUM_TOKENS), reference)
        assert (engine.stats.num_preemptions_total > 0) == (way in ("preempted", "swapped"))
    finally:
        engine.exit()


@pytest.mark.gpu
def test_cached_prompts_and_sleep_change_no_answer(folder, reference):
    engine, prompts = open_engine(folder, **ROOMY), prompts_of(folder, 50)
    try:
        check(greedy_answers(engine, prompts, NUM_TOKENS), reference)
        check(greedy_answers(engine, prompts, NUM_TOKENS), reference)
        assert engine.stats.cached_prompt_tokens_total > 2000
        check(greedy_answers(engine, prompts, NUM_TOKENS, after_step=sleep_every(15)), reference)
    finally:
        engine.exit()


def test_a_tiny_model_is_held_against_transformers_in_the_same_way(tmp_path):
    folder = make_tiny_llama(tmp_path)
    prompts = {name: prompt[:60] for name, prompt in prompts_of(folder, 6).items()}
    engine = open_engine(folder, num_kv_blocks=14, max_num_seqs=4)
    try:
        check(greedy_answers(engine, prompts, 40, after_step=sleep_every(20)), ReferenceModel(folder))
        assert engine.stats.num_preemptions_total > 0
    finally:
        engine.exit()
