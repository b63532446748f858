"""Memory kept free of KV blocks on a GPU; tests/kernels/gpu/test_step_memory.py measures a step."""

from dataclasses import replace

import pytest

from rayinfer.config import engine_config
from rayinfer.engine.worker.graphs.decode_graphs import graph_memory_bytes
from rayinfer.engine.worker.memory.reserved_memory import activation_memory_bytes, reserved_memory_bytes
from rayinfer.engine.worker.resolved_config import resolve_config
from rayinfer.models.model_config import ModelConfig

MIB = 1 << 20
FIXED = (64 + 64) * MIB  # scoring and slack
LLAMA_8B = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=131_072,
    dtype="bfloat16",
)


def test_activations_are_those_of_the_widest_part_of_one_layer_and_the_logits():
    feed_forward = 4 * 4096 + 4096 + 3 * 14_336
    got = activation_memory_bytes(LLAMA_8B, 8192, 256, element_bytes=2)
    assert got == 8192 * (2 * feed_forward + 64) + 256 * 128_256 * 12 + FIXED
    attention = 4 * 4096 + 4 * 4096 + 2 * 1024
    narrow = replace(LLAMA_8B, intermediate_size=100, num_layers=64)
    assert activation_memory_bytes(narrow, 100, 0, element_bytes=4) == 100 * (4 * attention + 64) + FIXED


def test_tensor_ranks_share_heads_and_feed_forward_but_no_states():
    inner = 4 * 4096 + 2048 + 3 * 7168
    got = activation_memory_bytes(LLAMA_8B, 1000, 0, element_bytes=2, tensor_parallel_size=2)
    assert got == 1000 * (2 * inner + 64) + FIXED


def test_experts_have_a_row_for_each_choice_of_a_token():
    experts = replace(LLAMA_8B, raw={"num_experts_per_tok": 8, "moe_intermediate_size": 1000})
    widest = 4 * 4096 + 4096 + 8 * (2 * 4096 + 3 * 1000)
    assert activation_memory_bytes(experts, 10, 0, element_bytes=2) == 10 * (2 * widest + 64) + FIXED
    mixtral = replace(LLAMA_8B, raw={"num_experts_per_tok": 2})
    widest = 4 * 4096 + 4096 + 2 * (2 * 4096 + 3 * 14_336)
    assert activation_memory_bytes(mixtral, 10, 0, element_bytes=2) == 10 * (2 * widest + 64) + FIXED


@pytest.mark.parametrize(
    ("settings", "longest", "padding", "num_tokens", "num_rows"),
    [
        ({}, 131_072, 0, 8192, 256),
        ({"max_num_batched_tokens": 100_000}, 131_072, 0, 100_000, 256),
        ({"max_num_seqs": 2}, 100, 0, 200, 2),  # two requests have no more tokens
        ({}, 131_072, 128, 8192 + 128, 256),
    ],
)
def test_the_largest_step_that_the_settings_allow_is_kept_free(settings, longest, padding, num_tokens, num_rows):
    config = resolve_config(engine_config(**settings), "cuda")
    activations = activation_memory_bytes(LLAMA_8B, num_tokens, num_rows, element_bytes=2)
    graphs = graph_memory_bytes(LLAMA_8B, num_rows, -(-longest // 16), 16)
    for has_graphs, expected in ((False, activations), (True, activations + graphs)):
        size = {"num_padding_tokens": padding, "has_graphs": has_graphs}
        assert reserved_memory_bytes(config, LLAMA_8B, longest, **size) == expected


def test_a_gpu_keeps_the_memory_of_adapters_slots_free():
    size = {"num_padding_tokens": 0, "has_graphs": False}

    def reserved(**settings):
        return reserved_memory_bytes(
            resolve_config(engine_config(model="m", **settings), "cuda"), LLAMA_8B, 4096, **size
        )

    assert reserved(enable_lora=True, max_lora_bytes=300 * MIB) == reserved(enable_lora=True) + 300 * MIB
    assert reserved(max_lora_bytes=300 * MIB) == reserved()
