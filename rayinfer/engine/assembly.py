"""Puts an engine together from its settings and a model's folder."""

import time
from functools import partial
from pathlib import Path

import torch

import rayinfer_kernels
from rayinfer.config import EngineConfig, cache_folder
from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.cores import Cores, fill_machine
from rayinfer.engine.encoder_decoder_engine import EncoderDecoderEngine
from rayinfer.engine.encoder_decoder_runner import EncoderDecoderRunner
from rayinfer.engine.engine import Engine
from rayinfer.engine.in_process_executor import InProcessExecutor
from rayinfer.engine.kv_offload import KVOffload
from rayinfer.engine.model_memory import ModelMemory
from rayinfer.engine.model_runner import ModelRunner
from rayinfer.engine.scheduler import Scheduler
from rayinfer.engine.static_runner import StaticRunner
from rayinfer.engine.static_shapes import StaticShapes
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.kv_cache.cache_tensors import BlockShape
from rayinfer.kv_cache.pool_size import count_kv_blocks, count_offload_blocks, count_static_blocks
from rayinfer.models.decoder import Decoder
from rayinfer.models.encoder_decoder import EncoderDecoder
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.quality_gates import check_quality
from rayinfer.optimization.ready_weights import load_ready_decoder
from rayinfer.protocols import ModelDescription


def build_engine(config: EngineConfig, folder: Path, *, name: str | None = None) -> Engine:
    """Load the model and give it its cache; `folder` is what `resolve_model` returned."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        rayinfer_kernels.configure(cache_folder() / "kernels")
    model = read_model_config(folder)
    _check_quality(config)
    _check_determinism(config, torch_dtype(config.dtype, model), device)
    if model.answers is not None:  # the tokens of its answers do not say what they answer: they are no cached prefixes
        config = config.model_copy(update={"engine": "static", "enable_prefix_caching": False})
    memory = _model_memory(config, model, folder, device)
    num_blocks = memory.num_blocks - _num_spare_blocks(config)
    max_model_len = _max_model_len(config, model, num_blocks)
    block_manager = BlockManager(num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching)
    scheduler = Scheduler(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_manager=block_manager,
        eos_token_ids=model.eos_token_ids,
        forced_end_token_id=model.forced_end_token_id,
        enable_prefix_caching=config.enable_prefix_caching,
        offload=_kv_offload(config, memory),
    )
    description = ModelDescription(
        name=name or config.model,
        max_model_len=max_model_len,
        vocab_size=model.vocab_size,
        created=int(time.time()),
        kv_blocks_total=num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        eos_token_ids=model.eos_token_ids,
        weights_generation=config.weights_generation,
        scores_prompts=model.answers is None,
    )
    engine_class = Engine if model.answers is None else partial(EncoderDecoderEngine, answers=model.answers)
    return engine_class(
        description=description,
        scheduler=scheduler,
        executor=InProcessExecutor(
            _runner(config, model, memory, max_model_len, device), memory, _cores(config, device)
        ),
        seed=config.seed,
    )


def _cores(config: EngineConfig, device: torch.device) -> Cores | None:
    num_threads = torch.get_num_threads()
    wanted = config.pin_threads if config.pin_threads is not None else fill_machine(num_threads)
    return Cores(num_threads, cache_folder() / "cores") if wanted and device.type == "cpu" else None


def _runner(
    config: EngineConfig, model: ModelConfig, memory: ModelMemory, max_model_len: int, device: torch.device
) -> ModelRunner:
    """What runs the steps; a static one has run each shape once."""
    decoder, num_rows = memory.decoder, _num_rows(config)
    assert decoder is not None, "the weights are gone"
    num_sampler_rows = num_rows + _num_spare_blocks(config)  # the spare block has a row, too
    sampler = Sampler(num_sampler_rows, model.vocab_size, device, forced_end_token_id=model.forced_end_token_id)
    if config.engine == "dynamic":
        return ModelRunner(decoder, sampler, device)
    shapes = StaticShapes(
        num_rows=num_rows,
        max_step_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=config.block_size,
        spare_block=memory.num_blocks - 1,
    )
    runner = StaticRunner(decoder, sampler, device, shapes)
    if isinstance(decoder, EncoderDecoder):
        max_read_tokens = config.max_num_batched_tokens
        runner = EncoderDecoderRunner(decoder, sampler, device, shapes, max_read_tokens=max_read_tokens)
    runner.warm_up()
    return runner


def _model_memory(config: EngineConfig, model: ModelConfig, folder: Path, device: torch.device) -> ModelMemory:
    """Load the weights and reserve the blocks, as many as there is room for beside them."""
    dtype = torch_dtype(config.dtype, model)
    shape = BlockShape(
        num_layers=model.num_layers,
        block_size=config.block_size,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=torch.int8 if config.kv_cache_dtype == "int8" else dtype,
    )
    num_offload_blocks = count_offload_blocks(config, shape.num_bytes)
    cache = PackedCache(cache_folder() / "packed")
    load = partial(load_ready_decoder, folder, dtype, device, quantization=config.quantization, cache=cache)
    decoder = load()
    longest = _longest_sequence(config, model)
    if config.engine == "static":
        # An encoder-decoder's sources take as much again as its answers.
        row_bytes = shape.num_bytes if model.answers is None else 2 * shape.num_bytes
        num_blocks = count_static_blocks(config, longest, row_bytes, device) + _num_spare_blocks(config)
    else:
        num_blocks = count_kv_blocks(config, shape.num_bytes, device)

    def make_ready(decoder: Decoder) -> None:
        # Some rotary scalings look at the longest sequence: at what is allowed, for what fits differs between machines.
        decoder.prepare(dtype, device, _max_model_len(config, model, num_blocks), longest)
        if isinstance(decoder, EncoderDecoder):
            decoder.make_room_for_sources(_num_rows(config) + 1, longest, dtype, device)

    def load_again() -> Decoder:
        if read_model_config(folder) != model:
            raise ModelLoadError(f"{folder}: config.json is not what it was when the engine was built")
        again = load()
        make_ready(again)
        return again

    make_ready(decoder)
    return ModelMemory(
        decoder, load_again, shape, num_blocks=num_blocks, num_offload_blocks=num_offload_blocks, device=device
    )


def _check_determinism(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> None:
    if config.deterministic and not rayinfer_kernels.is_batch_invariant(device, dtype):
        raise ConfigError(
            f"deterministic must not be true with {dtype} on a {device.type}: only the compiled CPU kernels keep "
            "results independent of the batch, in float32 and bfloat16 "
            f"({rayinfer_kernels.cpu_kernels_status().detail})"
        )


def _check_quality(config: EngineConfig) -> None:
    modes = [config.quantization, "int8-kv" if config.kv_cache_dtype == "int8" else None]
    for mode in filter(None, modes):
        check_quality(mode, is_inaccuracy_allowed=config.allow_inaccurate_quantization)


def _kv_offload(config: EngineConfig, memory: ModelMemory) -> KVOffload | None:
    if not memory.num_offload_blocks:
        return None
    return KVOffload(memory.num_offload_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching)


def _num_rows(config: EngineConfig) -> int:
    return min(config.max_num_seqs, config.max_num_batched_tokens)


def _num_spare_blocks(config: EngineConfig) -> int:
    # What fills a static engine's steps up reads and writes the pool's last block.
    return 1 if config.engine == "static" else 0


def _max_model_len(config: EngineConfig, model: ModelConfig, num_blocks: int) -> int:
    """The longest sequence that the model, the settings and the pool allow."""
    return min(_longest_sequence(config, model), num_blocks * config.block_size)


def _longest_sequence(config: EngineConfig, model: ModelConfig) -> int:
    """What the model and the settings allow, whatever the pool does."""
    if config.max_model_len is not None and config.max_model_len > model.longest_sequence:
        raise ConfigError(f"max_model_len {config.max_model_len} is above the model's {model.longest_sequence}")
    return config.max_model_len or model.max_position_embeddings
