"""Memory reserved for a captured step, against its real allocations."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from rayinfer.engine.worker.graphs.decode_graphs import step_memory_bytes
from rayinfer.engine.worker.memory.reserved_memory import activation_memory_bytes
from rayinfer.models.model_config import ModelConfig
from rayinfer_kernels.gpu.language import IS_INTERPRETED
from rayinfer_kernels.gpu.sampling.sampling import sample_rows
from support.kernels.layer_stacks import BLOCK_SIZE, RandomStack, StackCase, Step, make_step
from support.kernels.memory_use import memory_use_of

VOCAB, MAX_BLOCKS, NUM_REQUESTS = 200, 512, 4
CASE = StackCase(num_heads=4, num_kv_heads=1, windows=(None,))


def decoding_step(device: torch.device) -> Step:
    """A token of each request, whose tables have room for many."""
    ones = torch.ones(NUM_REQUESTS, dtype=torch.int32, device=device)
    tables = torch.zeros(NUM_REQUESTS, MAX_BLOCKS, dtype=torch.int32, device=device)
    starts = torch.arange(NUM_REQUESTS + 1, dtype=torch.int32, device=device)
    return Step(ones.long() - 1, ones.long() * -1, starts, ones, tables)


def bytes_at_once(action: Callable[[], object]) -> int:
    action()  # what is taken once, for products and counters, is counted apart
    if IS_INTERPRETED:
        return memory_use_of(action).num_bytes_at_once
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    action()
    return torch.cuda.max_memory_allocated() - before


def test_a_step_takes_no_more_than_is_kept_free_for_it(device):
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


@pytest.mark.gpu
@pytest.mark.parametrize("intermediate", [64, 2048])
def test_prompts_take_about_what_is_kept_free_for_activations(intermediate, device):
    case = StackCase(hidden=512, intermediate=intermediate, num_heads=8, num_kv_heads=2, head_dim=64)
    dtype = torch.bfloat16
    stack = RandomStack(case, dtype, dtype).on_gpu(device, lambda weight, is_gated: weight)
    spans = [(number, 0, 600) for number in range(3)]
    step = make_step(spans).on(device)
    taken = bytes_at_once(lambda: stack.run(torch.randn(1800, case.hidden, dtype=dtype, device=device), step))
    none, expected = (activation_memory_bytes(model_of(case), count, 0, element_bytes=2) for count in (0, 1800))
    assert 0.7 * (expected - none) < taken < expected - none


def model_of(case: StackCase) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=VOCAB,
        hidden_size=case.hidden,
        intermediate_size=case.intermediate,
        num_layers=len(case.windows),
        num_heads=case.num_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        max_position_embeddings=MAX_BLOCKS * BLOCK_SIZE,
    )
