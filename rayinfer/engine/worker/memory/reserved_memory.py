"""GPU memory kept free of KV blocks: for the activations of the largest step, and for CUDA graphs."""

from rayinfer.engine.worker.graphs.decode_graphs import graph_memory_bytes
from rayinfer.engine.worker.prompt_scorer import SLICE_BYTES
from rayinfer.engine.worker.resolved_config import ResolvedConfig
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import ModelConfig


def reserved_memory_bytes(
    config: ResolvedConfig, model: ModelConfig, longest_sequence: int, *, num_padding_tokens: int, has_graphs: bool
) -> int:
    """Estimate the memory of a rank's steps beside its weights and blocks."""
    num_rows = config.num_rows
    num_tokens = min(config.max_num_batched_tokens, num_rows * longest_sequence) + num_padding_tokens
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
    if config.enable_lora and config.max_lora_bytes is not None:
        reserved += config.max_lora_bytes
    return reserved


_LOGITS_BYTES = 12  # of one logit: as computed, as adjusted and once more in float32
_TOKEN_BYTES = 64  # ids, positions, slot_mapping and the like
_SCORING_BYTES = 4 * SLICE_BYTES  # a slice of a prompt's logits, and what scoring it takes beside
_SLACK_BYTES = 64 << 20  # between the blocks of torch's allocator


def activation_memory_bytes(
    model: ModelConfig, num_tokens: int, num_rows: int, *, element_bytes: int, tensor_parallel_size: int = 1
) -> int:
    """Estimate the peak of a step of `num_tokens` tokens in which `num_rows` requests sample.

    Counts the tensors of one layer that are alive at once, in attention or in the feed-forward, whichever takes more;
    layers follow each other in the same memory. Sizes are those of a fused decoder with fused attention kernels: other
    decoders may take more, for which `memory_fraction` leaves the rest of the memory.
    """
    states = num_tokens * (_widest_layer(model, tensor_parallel_size) * element_bytes + _TOKEN_BYTES)
    logits = num_rows * model.vocab_size * _LOGITS_BYTES
    return states + logits + _SCORING_BYTES + _SLACK_BYTES


def _widest_layer(model: ModelConfig, num_parts: int) -> int:
    """Count the elements per token that a rank holds at once: four states, and those of its heads or feed-forward."""
    hidden = model.hidden_size
    query = -(-model.num_heads // num_parts) * model.head_dim
    key_and_value = 2 * -(-model.num_kv_heads // num_parts) * model.head_dim
    attention = 4 * query + key_and_value  # projected, rotated, attended, and attended of the layer before
    inner = -(-model.intermediate_size // num_parts)
    feed_forward = query + 3 * inner  # gate and up, their product, and attention's output
    num_experts = int(model.raw.get("num_experts_per_tok") or 0)  # a token's rows for its experts, on any rank
    expert_inner = int(model.raw.get("moe_intermediate_size") or model.intermediate_size)
    experts = query + num_experts * (2 * hidden + 3 * expert_inner)
    return 4 * hidden + max(attention, feed_forward, experts if num_experts else 0)
