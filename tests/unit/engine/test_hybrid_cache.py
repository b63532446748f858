"""Engines whose sliding-window layers give blocks back: the same answers in less memory."""

import logging
import time

import pytest
from transformers import Gemma3TextConfig

from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.kv_cache.hybrid_blocks import HybridBlockManager
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from support.golden.engine_answers import answers_of, assert_alike, config_of
from support.tiny_models.tiny_architectures import DECODERS
from support.tiny_models.tiny_checkpoints import make_tiny_model

NAMES = ("gemma3", "gpt-oss", "mistral")
# Chunks shorter than prompts; with 24 blocks requests are preempted.
SIZES = {"block_size": 8, "num_kv_blocks": 24, "max_num_batched_tokens": 16}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: DECODERS[name](tmp_path_factory.mktemp("model")) for name in NAMES}


def without_windows(folder, **settings):
    return answers_of(folder, **SIZES | settings | {"disable_hybrid_kv_cache_manager": True})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "settings",
    [{"async_scheduling": True}, {"speculation": 5}, {"async_scheduling": True, "speculation": 5}],
    ids=["overlapped", "drafts", "overlapped drafts"],
)
def test_windows_change_no_bit_of_an_answer(name, settings, folders):
    got = answers_of(folders[name], sleeps=True, **SIZES | settings)
    assert got == without_windows(folders[name])


@pytest.mark.models  # for their time
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("name", "tensor", "pipeline"), [("gemma3", 2, 1), ("gpt-oss", 1, 2)])
def test_ranks_answer_alike(name, tensor, pipeline, folders):
    ranks = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    got = answers_of(folders[name], sleeps=True, **SIZES, **ranks)
    assert_alike(got, without_windows(folders[name]))


@pytest.mark.parametrize("name", NAMES)
def test_a_prefix_hit_continues_with_the_same_logprobs(name, folders):
    engines = [
        build_engine(config_of(folders[name], **SIZES | {"disable_hybrid_kv_cache_manager": is_off}), folders[name])
        for is_off in (True, False)
    ]
    prompt = [3 + 5 * i % 90 for i in range(70)]
    answers = [[run(engine, "first", prompt), run(engine, "again", [*prompt, 9, 8])] for engine in engines]
    assert answers[0] == answers[1]
    assert answers[1][1].num_cached_tokens == 64
    for engine in engines:
        engine.exit()


def run(engine, name, prompt, max_tokens=6):
    """Return the last delta of a request, which is alone, with all of its tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, logprobs=1)
    engine.add_request(GenerationRequest(request_id=name, prompt_token_ids=prompt, sampling_params=params))
    deltas = []
    while engine.has_unfinished_requests:
        deltas += engine.step()
    return deltas[-1]._replace(
        token_ids=[token for delta in deltas for token in delta.token_ids],
        logprobs=[place for delta in deltas for place in delta.logprobs or ()],
    )


class PeakUse:
    """A recorder that notes the blocks and pages that are in use while a step computes."""

    def __init__(self):
        self.scheduler = None
        self.blocks, self.pages = [], []
        self.clock = time.monotonic
        self.added = self.aborted = self.controlled = self.stepped = self.sampled = self.close = lambda *_: None

    def planned(self, plan, request_ids):
        self.blocks.append(self.scheduler.stats.kv_blocks_used)
        self.pages.append(self.scheduler.stats.kv_window_pages_used)


@pytest.mark.parametrize(("num_layers", "most_of_prefill", "most_of_decode"), [(18, 0.33, 0.23), (26, 0.32, 0.21)])
def test_8192_tokens_of_gemma_3_need_at_most_two_fifths_of_the_memory(
    num_layers, most_of_prefill, most_of_decode, tmp_path
):
    """Layers of Gemma 3 270M and 1B; memory in parts of blocks, which take the same in each layer."""
    sizes = {"num_hidden_layers": num_layers, "max_position_embeddings": 32768, "sliding_window": 512}
    tiny = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1}
    folder = make_tiny_model(tmp_path, Gemma3TextConfig(**sizes, **tiny, head_dim=8, vocab_size=97))
    settings = {"dtype": "float32", "num_kv_blocks": 600, "max_num_batched_tokens": 1024, "max_num_seqs": 2}
    config = engine_config(model=str(folder), num_threads=1, max_model_len=8192, **settings)
    use = PeakUse()
    engine = build_engine(config, folder, recorder=use)
    use.scheduler = engine.scheduler
    prompt = [3 + 7 * i % 90 for i in range(8192 - 32)]
    answer = run(engine, "long", prompt, max_tokens=32)
    engine.exit()
    whole = build_engine(config.model_copy(update={"disable_hybrid_kv_cache_manager": True}), folder)
    assert run(whole, "long", prompt, max_tokens=32) == answer  # log probabilities, too
    whole.exit()
    num_full = num_layers // 6
    needed = [
        blocks * num_full + pages * (num_layers - num_full) for blocks, pages in zip(use.blocks, use.pages, strict=True)
    ]
    assert len(needed) == 8 + 31
    before = 512 * num_layers
    assert max(needed) / before <= most_of_prefill
    assert needed[-1] / before <= most_of_decode


def test_windows_raise_the_number_of_tokens_that_fit_into_the_same_memory(folders):
    memory = {"block_size": 8, "max_num_batched_tokens": 16, "kv_cache_memory_bytes": 32 << 20}
    capacities = []
    for is_off in (True, False):
        config = engine_config(model=str(folders["gemma3"]), disable_hybrid_kv_cache_manager=is_off, **memory)
        engine = build_engine(config, folders["gemma3"])
        capacities.append(engine.description.kv_blocks_total)
        assert engine.stats.kv_window_pages_total == engine.description.kv_window_pages_total
        assert ("pages for sliding windows" in engine.description.capacity) != is_off
        engine.exit()
    assert capacities[1] > 1.8 * capacities[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"disable_hybrid_kv_cache_manager": True},
        {"kv_offload_bytes": 1 << 20},
        {"engine": "static", "num_kv_blocks": None},
        {"max_model_len": 16},  # no longer than the window
    ],
)
def test_blocks_stay_whole_where_a_setting_needs_that(settings, folders, caplog):
    caplog.set_level(logging.INFO)
    engine = build_engine(config_of(folders["gemma3"], **SIZES | settings), folders["gemma3"])
    assert not isinstance(engine.scheduler.blocks, HybridBlockManager)
    assert engine.description.kv_window_pages_total == 0
    reasons = [line for line in caplog.messages if line.startswith("sliding-window layers keep all KV blocks")]
    assert len(reasons) == ("max_model_len" not in settings)
    engine.exit()
