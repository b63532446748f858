"""Puts an engine together from its settings and a model's folder."""

import time
from pathlib import Path

import torch

import rayinfer_kernels
from rayinfer.config import EngineConfig, cache_folder
from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.engine import Engine
from rayinfer.engine.model_runner import ModelRunner
from rayinfer.engine.scheduler import Scheduler
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.kv_cache.cache_tensors import allocate_kv_caches
from rayinfer.kv_cache.pool_size import count_kv_blocks
from rayinfer.models.loader import load_decoder, torch_dtype
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.protocols import ModelDescription
from rayinfer_kernels import ops


def build_engine(config: EngineConfig, folder: Path, *, name: str | None = None) -> Engine:
    """Load the model and give it its cache; `folder` is what `resolve_model` returned."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        rayinfer_kernels.configure(cache_folder() / "kernels")
    model = read_model_config(folder)
    dtype = torch_dtype(config.dtype, model)
    decoder = load_decoder(folder, dtype, device)
    num_blocks, max_model_len = _pool_size(config, model, dtype, device)
    decoder.prepare(dtype, device, max_model_len)
    decoder.bind_kv_caches(
        allocate_kv_caches(
            model.num_layers, num_blocks, config.block_size, model.num_kv_heads, model.head_dim, dtype, device
        )
    )
    block_manager = BlockManager(num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching)
    scheduler = Scheduler(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_manager=block_manager,
        eos_token_ids=model.eos_token_ids,
        enable_prefix_caching=config.enable_prefix_caching,
    )
    description = ModelDescription(
        name=name or config.model,
        max_model_len=max_model_len,
        vocab_size=model.vocab_size,
        created=int(time.time()),
        kv_blocks_total=num_blocks,
        block_size=config.block_size,
    )
    sampler = Sampler(config.max_num_seqs, model.vocab_size, device)
    executor = ModelRunner(decoder, sampler, device)
    return Engine(
        description=description,
        scheduler=scheduler,
        executor=executor,
        eos_token_ids=model.eos_token_ids,
        seed=config.seed,
    )


def _pool_size(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> tuple[int, int]:
    """Blocks in the pool, and the longest sequence that the model, the settings and the pool allow."""
    longest = model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ConfigError(f"max_model_len {config.max_model_len} is above the model's {longest}")
    block_bytes = model.num_layers * ops.kv_block_bytes(config.block_size, model.num_kv_heads, model.head_dim, dtype)
    num_blocks = count_kv_blocks(config, block_bytes, device)
    return num_blocks, min(config.max_model_len or longest, num_blocks * config.block_size)
