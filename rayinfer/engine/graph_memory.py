"""GPU memory of captured graphs: a conservative estimate, made before blocks take what is left."""

import importlib

from rayinfer.engine.decode_graphs import graph_sizes
from rayinfer.models.model_config import ModelConfig

# What torch gives cuBLAS for each stream of each thread, from compute capability 9.0 on; older GPUs get a quarter. Of
# these there are three: that which records, and that of steps in the thread that builds the engine and in its own.
_WORKSPACE_BYTES, _NUM_WORKSPACES = 32 << 20, 3
_LAUNCHES_PER_LAYER, _LAUNCH_BYTES = 16, 8 << 10  # what CUDA keeps of a graph itself: so much for each of its kernels
_SLACK_BYTES = 64 << 20  # for what lies between the blocks of torch's allocator


def graph_memory_bytes(model: ModelConfig, max_capture_size: int, max_blocks: int, block_size: int) -> int:
    """Estimate all graphs together: the largest one's tensors, which the others share, and what each adds.

    No block table is longer than `max_blocks`.
    """
    sizes = graph_sizes(max_capture_size)
    largest = max(step_memory_bytes(model, size, max_blocks * block_size) for size in sizes)
    tables = sizes[-1] * max_blocks * 4 * 3  # where the graphs read them, and twice on their way
    each = model.num_layers * _LAUNCHES_PER_LAYER * _LAUNCH_BYTES
    return largest + tables + len(sizes) * each + _NUM_WORKSPACES * _WORKSPACE_BYTES + _SLACK_BYTES


def step_memory_bytes(model: ModelConfig, num_requests: int, max_context: int) -> int:
    """Bound what a step of one token each allocates; contexts have up to `max_context` tokens."""
    logits = model.vocab_size * 12  # as computed, as kept, and once in float32
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    states = 4 * (8 * model.hidden_size + 4 * heads + 4 * model.intermediate_size)
    # By name: they bring Triton along, whose import takes part of a second, also where there is no GPU.
    attention = importlib.import_module("rayinfer_kernels.gpu.decode_attention")
    splits = attention.splits_bytes(num_requests, model.num_heads, model.num_kv_heads, model.head_dim, max_context)
    sampling = importlib.import_module("rayinfer_kernels.gpu.sampling")
    candidates = sampling.sampling_bytes(num_requests, model.vocab_size)
    return num_requests * (logits + states) + int(splits) + int(candidates)
