"""Weights and KV blocks of an EAGLE-3 head, and its drafter."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rayinfer.engine.drafting.draft_rows import DraftRows
from rayinfer.engine.drafting.eagle_drafter import EagleDrafter
from rayinfer.engine.plan.step_plan import StepPlan
from rayinfer.engine.worker.draft_models.draft_memory import DraftMemory
from rayinfer.engine.worker.memory.model_memory import ModelMemory
from rayinfer.engine.worker.model_runner import ModelRunner
from rayinfer.engine.worker.resolved_config import ResolvedConfig
from rayinfer.kv_cache.cache_tensors import BlockShape
from rayinfer.layers.embedding import TokenEmbedding
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.eagle3 import Eagle3Head, layers_read, load_eagle3_head
from rayinfer.models.loader import read_parameters
from rayinfer.models.model_config import ModelConfig

_CPU = torch.device("cpu")


class EagleWeights:
    """A head that is loaded and has no KV blocks yet; its weights are never quantized."""

    def __init__(
        self,
        config: ResolvedConfig,
        folder: Path,
        dtype: torch.dtype,
        cache_type: torch.dtype | None,
        model_folder: Path,
    ) -> None:
        self._config, self._dtype = config, dtype
        # Of several tensor ranks each has a part of the model's embedding, and this one cannot ask the others.
        self._load = partial(_load, folder, model_folder if config.tensor_parallel_size > 1 else None, dtype)
        self._head = self._load()
        self.shape = BlockShape(
            num_layers=1,
            block_size=config.block_size,
            num_kv_heads=self._head.config.num_kv_heads,
            head_dim=self._head.config.head_dim,
            dtype=dtype if cache_type is None else cache_type,
            computed_on=_CPU,
        )

    def states_read(self, model: ModelConfig) -> tuple[int, ...]:
        """Return the layers of the model whose inputs it reads."""
        return layers_read(model.num_layers)

    def with_blocks(
        self,
        num_blocks: int,
        *,
        runner: ModelRunner,
        max_model_len: int,
        hold_cores: Callable[[], AbstractContextManager[None]],
    ) -> DraftMemory:
        """Take memory for so many blocks, as the model has them, and read what it computes."""
        config, head = self._config, self._head
        longest = min(max_model_len, head.config.longest_sequence, num_blocks * config.block_size)
        head.prepare(self._dtype, _CPU, longest)
        load = partial(_load_prepared, self._load, self._dtype, longest)
        memory = ModelMemory(head, load, self.shape, num_blocks=num_blocks)  # type: ignore[arg-type]
        drafter = EagleDrafter(
            head,
            partial(_embed, runner),
            DraftRows(config.num_rows, longest, config.block_size, num_blocks),
            longest_sequence=longest,
            max_step_tokens=config.max_num_batched_tokens,
            hold_cores=hold_cores,
        )
        runner.on_states = partial(_observe, drafter)
        return DraftMemory(drafter, memory)


def _load(folder: Path, model_folder: Path | None, dtype: torch.dtype) -> Eagle3Head:
    """Load a head, and with the model's folder an embedding of its own if it has none."""
    head = load_eagle3_head(folder, dtype, _CPU)
    if head.embed_tokens is None and model_folder is not None:
        head.embed_tokens = _whole_embedding(model_folder, head.config, dtype)
    return head


def _load_prepared(load: Callable[[], Eagle3Head], dtype: torch.dtype, longest_sequence: int) -> Eagle3Head:
    head = load()
    head.prepare(dtype, _CPU, longest_sequence)
    return head


def _whole_embedding(folder: Path, config: ModelConfig, dtype: torch.dtype) -> TokenEmbedding:
    """Read the embedding of a Llama-shaped model, of all its tokens."""
    embedding = TokenEmbedding(config.vocab_size, config.hidden_size).to(dtype)
    for part in read_parameters(folder, ["model.embed_tokens.weight"]):
        embedding.weight.data[part.index] = part.tensor.to(dtype)
    return embedding


def _embed(runner: ModelRunner, token_ids: torch.Tensor) -> torch.Tensor:
    """Embed tokens as the model does."""
    assert isinstance(runner.decoder, CausalDecoder), "checked before"
    return runner.decoder.embed_tokens(token_ids)


def _observe(drafter: EagleDrafter, plan: StepPlan, read: torch.Tensor) -> None:
    new_rows = [each.row for each in plan.new_requests]
    counts = np.diff(plan.cu_seqlens_q).tolist()
    drafter.observe(new_rows, plan.rows.tolist(), plan.seq_lens.tolist(), counts, read)
