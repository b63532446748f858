"""What is kept free for recorded steps, against what a step really allocates: in Triton's interpreter, or on a GPU."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from layer_stacks import BLOCK_SIZE, RandomStack, StackCase, Step
from memory_use import memory_use_of
from rayinfer.engine.graph_memory import graph_memory_bytes, step_memory_bytes
from rayinfer.models.model_config import ModelConfig
from rayinfer_kernels.gpu.decode_attention import splits_bytes
from rayinfer_kernels.gpu.language import IS_INTERPRETED
from rayinfer_kernels.gpu.sampling import sample_rows
from triton_interpreter import let_numbers_end_loops

VOCAB, MAX_BLOCKS, NUM_REQUESTS = 200, 512, 4
CASE = StackCase(num_heads=4, num_kv_heads=1, windows=(None,))
NEEDS_GPU = [] if IS_INTERPRETED else [pytest.mark.gpu]
MIB = 1 << 20


def model_of(case: StackCase, vocab_size: int = VOCAB, **settings: int) -> ModelConfig:
    shape = {
        "hidden_size": case.hidden,
        "intermediate_size": case.intermediate,
        "num_layers": len(case.windows),
        "num_heads": case.num_heads,
        "num_kv_heads": case.num_kv_heads,
        "head_dim": case.head_dim,
    }
    return ModelConfig(
        architecture="LlamaForCausalLM", vocab_size=vocab_size, max_position_embeddings=8192, **shape | settings
    )


def decoding_step(device: torch.device) -> Step:
    """A token of each request, whose tables have room for many."""
    ones = torch.ones(NUM_REQUESTS, dtype=torch.int32, device=device)
    tables = torch.zeros(NUM_REQUESTS, MAX_BLOCKS, dtype=torch.int32, device=device)
    starts = torch.arange(NUM_REQUESTS + 1, dtype=torch.int32, device=device)
    return Step(ones.long() - 1, ones.long() * -1, starts, ones, tables)


def bytes_at_once(action: Callable[[], object]) -> int:
    if IS_INTERPRETED:
        return memory_use_of(action).num_bytes_at_once
    action()  # what is taken once, for products, is counted apart
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    action()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("device", [pytest.param("cpu" if IS_INTERPRETED else "cuda", marks=NEEDS_GPU)])
def test_a_step_takes_no_more_than_is_kept_free_for_it(device):
    device = torch.device(device)
    if IS_INTERPRETED:
        let_numbers_end_loops()
    stack = RandomStack(CASE, torch.float32, torch.float32).on_gpu(device, lambda weight, is_gated: weight)
    step, head = decoding_step(device), torch.randn(VOCAB, CASE.hidden, device=device)
    kept = torch.empty(0, device=device)
    ones = torch.ones(NUM_REQUESTS, device=device)

    def run() -> None:
        hidden = stack.run(torch.randn(NUM_REQUESTS, CASE.hidden, device=device), step)
        logits = F.linear(hidden, head)
        kept.set_(logits.clone())
        sample_rows(logits, ones, ones.int() * VOCAB, ones, ones * 0, ones / 2, ones < 0)

    taken = bytes_at_once(run)
    expected = step_memory_bytes(model_of(CASE), NUM_REQUESTS, MAX_BLOCKS * BLOCK_SIZE)
    assert expected / 3 < taken < expected


def test_memory_grows_with_the_largest_graph_with_contexts_and_with_layers():
    qwen3 = {"hidden_size": 1024, "intermediate_size": 3072, "num_layers": 28, "head_dim": 128, "num_heads": 16}
    model = model_of(CASE, 150_000, num_kv_heads=8, **qwen3)
    one, full = (graph_memory_bytes(model, num_rows, 256, 16) for num_rows in (1, 256))
    assert 160 * MIB < one < 200 * MIB  # for the most part cuBLAS's
    assert full > one + 256 * 150_000 * 8
    short, long = (splits_bytes(256, 16, 8, 128, max_context) for max_context in (256 * 16, 2560 * 16))
    assert graph_memory_bytes(model, 256, 2560, 16) > full + long - short > full
    deeper = model_of(CASE, 150_000, num_kv_heads=8, **qwen3 | {"num_layers": 56})
    assert graph_memory_bytes(deeper, 256, 256, 16) > full + 35 * 28 * (64 << 10)
