"""Puts an engine together from its settings and a model's folder."""

import time
from pathlib import Path

import torch

import rayinfer_kernels
from rayinfer.config import EngineConfig, cache_folder
from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.engine import Engine
from rayinfer.engine.in_process_executor import InProcessExecutor
from rayinfer.engine.kv_offload import KVOffload
from rayinfer.engine.model_memory import ModelMemory
from rayinfer.engine.model_runner import ModelRunner
from rayinfer.engine.scheduler import Scheduler
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.kv_cache.cache_tensors import BlockShape
from rayinfer.kv_cache.pool_size import count_kv_blocks, count_offload_blocks
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import load_decoder, torch_dtype
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.protocols import ModelDescription


def build_engine(config: EngineConfig, folder: Path, *, name: str | None = None) -> Engine:
    """Load the model and give it its cache; `folder` is what `resolve_model` returned."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        rayinfer_kernels.configure(cache_folder() / "kernels")
    model = read_model_config(folder)
    memory = _model_memory(config, model, folder, device)
    max_model_len = _max_model_len(config, model, memory.num_blocks)
    block_manager = BlockManager(
        memory.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
    )
    scheduler = Scheduler(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_manager=block_manager,
        eos_token_ids=model.eos_token_ids,
        enable_prefix_caching=config.enable_prefix_caching,
        offload=_kv_offload(config, memory),
    )
    description = ModelDescription(
        name=name or config.model,
        max_model_len=max_model_len,
        vocab_size=model.vocab_size,
        created=int(time.time()),
        kv_blocks_total=memory.num_blocks,
        block_size=config.block_size,
    )
    sampler = Sampler(config.max_num_seqs, model.vocab_size, device)
    return Engine(
        description=description,
        scheduler=scheduler,
        executor=InProcessExecutor(ModelRunner(memory.decoder, sampler, device), memory),
        eos_token_ids=model.eos_token_ids,
        seed=config.seed,
    )


def _model_memory(config: EngineConfig, model: ModelConfig, folder: Path, device: torch.device) -> ModelMemory:
    """Load the weights and reserve the blocks, as many as there is room for beside them."""
    dtype = torch_dtype(config.dtype, model)
    shape = BlockShape(
        num_layers=model.num_layers,
        block_size=config.block_size,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
    )
    num_offload_blocks = count_offload_blocks(config, shape.num_bytes)
    decoder = load_decoder(folder, dtype, device)
    num_blocks = count_kv_blocks(config, shape.num_bytes, device)
    # Some rotary scalings look at the longest sequence: at what is allowed, for what fits differs between machines.
    lengths = _max_model_len(config, model, num_blocks), config.max_model_len or model.max_position_embeddings
    decoder.prepare(dtype, device, *lengths)

    def load_again() -> Decoder:
        if read_model_config(folder) != model:
            raise ModelLoadError(f"{folder}: config.json is not what it was when the engine was built")
        again = load_decoder(folder, dtype, device)
        again.prepare(dtype, device, *lengths)
        return again

    return ModelMemory(
        decoder, load_again, shape, num_blocks=num_blocks, num_offload_blocks=num_offload_blocks, device=device
    )


def _kv_offload(config: EngineConfig, memory: ModelMemory) -> KVOffload | None:
    if not memory.num_offload_blocks:
        return None
    return KVOffload(memory.num_offload_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching)


def _max_model_len(config: EngineConfig, model: ModelConfig, num_blocks: int) -> int:
    """The longest sequence that the model, the settings and the pool allow."""
    if config.max_model_len is not None and config.max_model_len > model.longest_sequence:
        raise ConfigError(f"max_model_len {config.max_model_len} is above the model's {model.longest_sequence}")
    return min(config.max_model_len or model.max_position_embeddings, num_blocks * config.block_size)
