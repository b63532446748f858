"""Correctness check of the engine: the same model in plain torch, in float32 on the host, token by token."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.benchmark.gpu import engine_runs
from rayinfer.benchmark.gpu.cases import even_workload
from rayinfer.benchmark.gpu.gpu_report import Check
from rayinfer.benchmark.gpu.model_shapes import SHAPES, tiny_shape, write_shape
from rayinfer.engine.loop.engine import Engine
from rayinfer.kv_cache.cache_tensors import allocate_kv_caches
from rayinfer.models.checkpoints.safetensors_writer import TensorSpec, write_safetensors
from rayinfer.models.loader import load_decoder
from rayinfer.models.random_weights import random_decoder
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams

NUM_PROMPTS, PROMPT_LEN, NUM_COMPLETED = 8, 96, 24
BLOCK_SIZE = 16
# Between log probabilities of one token. Numbers in bfloat16 have eight bits.
ALLOWED = {"bfloat16": 0.15, "float32": 2e-3}
# Fraction of equal outputs with graphs and without: padded steps may sum in another order, which decides near ties.
LEAST_EQUAL = {"float32": 1.0, "bfloat16": 0.5}
CHECKED_TYPES = tuple(ALLOWED)  # the type of the cases first
_HOST = torch.device("cpu")


class Completion(NamedTuple):
    """Output of one prompt, and the log probabilities of all tokens but the prompt's first."""

    token_ids: list[int]
    logprobs: list[float]


def run_checks(folder: Path, dtype: str, *, tiny: bool) -> list[Check]:
    """Compare a model of two real layers with the reference, with CUDA graphs and without."""
    shape = tiny_shape("Qwen3-0.6B") if tiny else SHAPES["Qwen3-0.6B"]
    shape = {**shape, "num_hidden_layers": 2, "vocab_size": 512 if tiny else 2048}
    checkpoint = _write_checkpoint(shape, folder / "checked")
    workload = even_workload(NUM_PROMPTS, PROMPT_LEN, NUM_COMPLETED, seed=3)
    prompts = [[token_id % shape["vocab_size"] for token_id in prompt] for prompt in workload.prompts]
    scored = _complete(checkpoint, prompts, dtype, is_scored=True)
    with_graphs, without = (_complete(checkpoint, prompts, dtype, is_eager=is_eager) for is_eager in (False, True))
    num_equal = sum(one.token_ids == other.token_ids for one, other in zip(with_graphs, without, strict=True))
    same = Check(
        name=f"graphs, {dtype}",
        is_right=num_equal >= LEAST_EQUAL[dtype] * len(prompts),
        detail=f"{num_equal} of {len(prompts)} outputs are equal with graphs and without",
    )
    return [_compare_scores(checkpoint, prompts, scored, dtype, ALLOWED[dtype]), same]


def _write_checkpoint(shape: Mapping[str, Any], folder: Path) -> Path:
    """Write random weights, so that the engine and the reference read the same."""
    write_shape(shape, folder)
    decoder = random_decoder(folder, torch.float32, _HOST)
    assert isinstance(decoder, torch.nn.Module)
    sources = {name: source for name, source in decoder.checkpoint_slices().items() if not source.replaces}
    parameters = dict(decoder.named_parameters())
    tensors = {
        name: parameters[source.parameter].data
        if source.index is None
        else parameters[source.parameter].data[source.index]
        for name, source in sources.items()
    }
    specs = [TensorSpec(name=name, shape=tuple(tensor.shape)) for name, tensor in tensors.items()]
    write_safetensors(folder / "model.safetensors", "F32", specs, (tensor.numpy() for tensor in tensors.values()))
    return folder


def _complete(
    checkpoint: Path, prompts: Sequence[list[int]], dtype: str, *, is_eager: bool = False, is_scored: bool = False
) -> list[Completion]:
    scores = {"logprobs": 0, "prompt_logprobs": 0} if is_scored else {}
    params = SamplingParams(temperature=0.0, max_tokens=NUM_COMPLETED, ignore_eos=True, **scores)  # type: ignore[arg-type]
    token_ids: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    logprobs: dict[str, list[float]] = {name: [] for name in token_ids}
    with _open(checkpoint, dtype, is_eager) as engine:
        for name, prompt in zip(token_ids, prompts, strict=True):
            engine.add_request(GenerationRequest(request_id=name, prompt_token_ids=prompt, sampling_params=params))
        while engine.has_unfinished_requests:
            for delta in engine.step():
                name = delta.request_id
                scored = [*(delta.prompt_logprobs or [])[1:], *(delta.logprobs or [])]
                tokens = [*(prompts[int(name)][1:] if delta.prompt_logprobs else []), *delta.token_ids]
                if is_scored:
                    pairs = zip(scored, tokens, strict=True)
                    logprobs[name] += [each[token_id].logprob for each, token_id in pairs if each is not None]
                token_ids[name] += delta.token_ids
    return [Completion(token_ids[name], logprobs[name]) for name in token_ids]


def _open(checkpoint: Path, dtype: str, is_eager: bool) -> AbstractContextManager[Engine]:
    settings = {
        "dtype": dtype,
        "enforce_eager": is_eager,
        "num_kv_blocks": 256,
        "max_num_seqs": NUM_PROMPTS,
        "max_num_batched_tokens": 256,
    }
    return engine_runs.open_engine(checkpoint, load_format="auto", block_size=BLOCK_SIZE, **settings)


def _compare_scores(
    checkpoint: Path, prompts: Sequence[list[int]], completions: Sequence[Completion], dtype: str, allowed: float
) -> Check:
    farthest = 0.0
    for prompt, completion in zip(prompts, completions, strict=True):
        expected = _reference_logprobs(checkpoint, prompt + completion.token_ids)
        if len(expected) != len(completion.logprobs):
            return Check(name=f"log probabilities, {dtype}", is_right=False, detail="some are missing")
        differences = (torch.tensor(completion.logprobs) - expected).abs()
        farthest = max(farthest, float(differences.nan_to_num(torch.inf).max()))
    return Check(
        name=f"log probabilities, {dtype}",
        is_right=farthest <= allowed,
        detail=f"{farthest:.2g} from the reference in float32, {allowed:g} allowed",
    )


@torch.inference_mode()
def _reference_logprobs(checkpoint: Path, token_ids: list[int]) -> torch.Tensor:
    """Compute the log probabilities of all tokens but the first, at once on the host."""
    decoder = load_decoder(checkpoint, torch.float32, _HOST)
    config, num_tokens = decoder.config, len(token_ids)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    decoder.prepare(torch.float32, _HOST, num_blocks * BLOCK_SIZE, config.max_position_embeddings)
    sizes = (config.num_layers, num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    decoder.bind_kv_caches(allocate_kv_caches(*sizes, torch.float32, _HOST))
    batch = AttentionBatch(
        positions=torch.arange(num_tokens),
        slot_mapping=torch.arange(num_tokens),
        cu_seqlens_q=torch.tensor([0, num_tokens], dtype=torch.int32),
        seq_lens=torch.tensor([num_tokens], dtype=torch.int32),
        block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
    )
    tokens = torch.tensor(token_ids)
    scores = decoder.logits(decoder.forward(tokens.int(), batch)).log_softmax(-1)
    return scores[:-1].gather(1, tokens[1:, None])[:, 0]
