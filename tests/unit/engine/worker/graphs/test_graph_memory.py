"""Memory reserved for all graphs together; tests/kernels/gpu/test_step_memory.py measures one step."""

from typing import Any

from rayinfer.engine.worker.graphs.decode_graphs import graph_memory_bytes
from rayinfer.models.model_config import ModelConfig
from rayinfer_kernels.gpu.decode_attention import splits_bytes

MIB = 1 << 20
QWEN3: dict[str, Any] = {
    **{"architecture": "Qwen3ForCausalLM", "vocab_size": 150_000, "hidden_size": 1024, "intermediate_size": 3072},
    **{"num_layers": 28, "num_heads": 16, "num_kv_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960},
}


def test_memory_grows_with_the_largest_graph_with_contexts_and_with_layers():
    model = ModelConfig(**QWEN3)
    one, full = (graph_memory_bytes(model, num_rows, 256, 16) for num_rows in (1, 256))
    assert 160 * MIB < one < 200 * MIB  # for the most part cuBLAS's
    assert full > one + 256 * 150_000 * 8
    short, long = (splits_bytes(256, 16, 8, 128, max_context) for max_context in (256 * 16, 2560 * 16))
    assert graph_memory_bytes(model, 256, 2560, 16) > full + long - short > full
    deeper = ModelConfig(**QWEN3 | {"num_layers": 56})
    assert graph_memory_bytes(deeper, 256, 256, 16) > full + 35 * 28 * (64 << 10)
