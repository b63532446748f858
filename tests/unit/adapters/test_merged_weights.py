"""Engines with adapters answer like engines with the adapter merged into their weights, for every architecture."""

from dataclasses import replace

import pytest

from rayinfer.engine.build import build_engine
from rayinfer.kv_cache.adapter_id import adapter_id
from rayinfer.protocols import LoadAdapter
from support.golden.engine_answers import Answers, answers_of, assert_alike, config_of, greedy_requests
from support.tiny_models.tiny_adapters import make_adapter, merge_adapter
from support.tiny_models.tiny_architectures import DECODERS

ALWAYS = {("phi3", "tensor_parallel_size")}
RANKS = [
    pytest.param(name, size, marks=() if (name, size) in ALWAYS else pytest.mark.models, id=f"{name}, {size}")
    for name in ("llama", "gpt2", "phi3", "qwen3-moe")
    for size in ("tensor_parallel_size", "pipeline_parallel_size")
]


def answers_with(folder, adapters, **settings) -> dict[int | None, Answers]:
    """Run all requests in one engine, each once with every adapter and once without, mixed in the batches."""
    pool = {"num_kv_blocks": None if settings.get("engine") == "static" else 80}
    engine = build_engine(config_of(folder, enable_lora=True, max_num_seqs=8, **pool, **settings), folder)
    answers: dict[int | None, Answers] = {}
    try:
        of_adapter = [
            {"adapter": adapter_id(str(number), engine.control(LoadAdapter(str(path)))), "adapter_folder": str(path)}
            for number, path in enumerate(adapters)
        ]
        for request in greedy_requests():
            for number, fields in [(None, {}), *enumerate(of_adapter)]:
                engine.add_request(replace(request, request_id=f"{number} {request.request_id}", **fields))
        while engine.has_unfinished_requests:
            for delta in engine.step():
                owner, _, name = delta.request_id.partition(" ")
                number = None if owner == "None" else int(owner)
                answers.setdefault(number, Answers({}, {})).note(delta._replace(request_id=name))
    finally:
        engine.exit()
    return answers


def check(name, tmp_path, **settings):
    folder = DECODERS[name](tmp_path / "model")
    adapters = [
        make_adapter(tmp_path / "a", folder, rank=4, seed=1),
        make_adapter(tmp_path / "b", folder, rank=3, seed=2, use_rslora=True, ranks={"0": 2}),
    ]
    got = answers_with(folder, adapters, **settings)
    base = answers_of(folder)
    assert_alike(got[None], base)
    for number, adapter in enumerate(adapters):
        merged = answers_of(merge_adapter(tmp_path / f"merged-{number}", folder, adapter))
        assert_alike(got[number], merged)
        assert got[number].logprobs != base.logprobs


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", DECODERS)
def test_adapters_answer_like_merged_weights(name, tmp_path):
    check(name, tmp_path)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "settings",
    [
        *({"engine": "static"}, {"async_scheduling": True}, {"speculation": "auto"}),
        {"async_scheduling": True, "speculation": "auto"},
    ],
    ids=str,
)
def test_adapters_answer_like_merged_weights_in_other_engines(settings, tmp_path):
    check("llama", tmp_path, **settings)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("name", "size"), RANKS)
def test_adapters_answer_like_merged_weights_over_ranks(name, size, tmp_path):
    check(name, tmp_path, **{size: 2})
