"""Weights and KV blocks of a draft model, and its drafter."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from rayinfer.engine.drafting.draft_model import DraftModel
from rayinfer.engine.drafting.draft_rows import DraftRows
from rayinfer.engine.drafting.drafter import Drafter
from rayinfer.engine.plan.executor_commands import SleepLevel
from rayinfer.engine.worker.memory.model_memory import ModelMemory
from rayinfer.engine.worker.model_runner import ModelRunner
from rayinfer.engine.worker.resolved_config import ResolvedConfig
from rayinfer.engine.worker.weight_loading import reload_weights, weight_loader
from rayinfer.kv_cache.cache_tensors import BlockShape
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.tensor_parallel import UNSHARDED

_CPU = torch.device("cpu")


class LoadedDrafter(Drafter, Protocol):
    """A drafter with a model."""

    def use(self, model: Any) -> None:
        """Draft with this model from now on; None: not at all."""
        ...


class DraftWeights:
    """A draft model that is loaded and has no KV blocks yet."""

    def __init__(self, config: ResolvedConfig, folder: Path, cache_type: torch.dtype | None) -> None:
        self._config, self._folder = config, folder
        self._model = read_model_config(folder)
        self._dtype = torch_dtype(config.dtype, self._model)
        self._load = weight_loader(config, folder, self._dtype, _CPU, UNSHARDED)
        self._decoder = self._load()
        self.shape = BlockShape(
            num_layers=self._decoder.num_layers_here,
            block_size=config.block_size,
            num_kv_heads=self._decoder.num_kv_heads_here,
            head_dim=self._model.head_dim,
            dtype=self._dtype if cache_type is None else cache_type,
            computed_on=_CPU,
        )

    def states_read(self, model: ModelConfig) -> tuple[int, ...]:
        """Return the layers of the model whose inputs it reads: none."""
        return ()

    def with_blocks(
        self,
        num_blocks: int,
        *,
        runner: ModelRunner,
        max_model_len: int,
        hold_cores: Callable[[], AbstractContextManager[None]],
    ) -> "DraftMemory":
        """Take memory for so many blocks, as the model has them that it drafts for."""
        config = self._config
        longest = min(max_model_len, self._model.longest_sequence, num_blocks * config.block_size)
        prepare = partial(_prepare, self._dtype, longest)
        prepare(self._decoder)
        memory = ModelMemory(
            self._decoder,
            partial(reload_weights, self._load, prepare, self._folder, self._model),
            self.shape,
            num_blocks=num_blocks,
        )
        drafter = DraftModel(
            self._decoder,
            DraftRows(config.num_rows, longest, config.block_size, num_blocks),
            vocab_size=runner.vocab_size,
            longest_sequence=longest,
            max_step_tokens=config.max_num_batched_tokens,
            hold_cores=hold_cores,
        )
        return DraftMemory(drafter, memory)


class DraftMemory:
    """A draft model's drafter and memory, which sleep and wake with the engine; drafts never outlive that."""

    def __init__(self, drafter: LoadedDrafter, memory: ModelMemory) -> None:
        self.drafter = drafter
        self._memory = memory

    def release(self, level: SleepLevel) -> None:
        """Free memory, as the model's own is freed; no block is kept."""
        if level is SleepLevel.PERSIST:
            return
        self.drafter.use(None)
        self._memory.release(level, ())

    def restore(self, level: SleepLevel) -> None:
        """Allocate it again."""
        self._memory.restore(level)
        self.drafter.use(self._memory.decoder)

    def drop(self) -> None:
        """Free everything for good."""
        self.drafter.use(None)
        self._memory.drop()


def _prepare(dtype: torch.dtype, longest_sequence: int, decoder: Decoder) -> None:
    decoder.prepare(dtype, _CPU, longest_sequence, longest_sequence)
