"""GPU memory that is kept free of KV blocks: for the activations of the largest step, and for CUDA graphs."""

from rayinfer.engine.activation_memory import activation_memory_bytes
from rayinfer.engine.graph_memory import graph_memory_bytes
from rayinfer.engine.settled_config import SettledConfig
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import ModelConfig


def reserved_memory_bytes(config: SettledConfig, model: ModelConfig, longest_sequence: int, *, has_graphs: bool) -> int:
    """Estimate what a rank's steps take beside its weights and blocks."""
    num_rows = config.num_rows
    num_tokens = min(config.max_num_batched_tokens, num_rows * longest_sequence)
    if config.engine == "static":
        num_tokens += 2 * num_rows  # its steps are filled up
    reserved = activation_memory_bytes(
        model,
        num_tokens,
        num_rows,
        element_bytes=torch_dtype(config.dtype, model).itemsize,
        tensor_parallel_size=config.tensor_parallel_size,
    )
    if has_graphs:
        max_blocks = -(-longest_sequence // config.block_size)
        reserved += graph_memory_bytes(model, config.max_cudagraph_capture_size, max_blocks, config.block_size)
    return reserved
