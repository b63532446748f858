"""One rank's part of a model, in the simplest case all of it: weights, blocks, and what runs steps with them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import rayinfer_kernels
from rayinfer.config import EngineConfig, cache_folder, packed_cache_bytes
from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.ranks.pipeline_link import ONLY_STAGE, PipelineLink, Stage
from rayinfer.engine.ranks.rank_coordinates import Ranks, any_device, place_of
from rayinfer.engine.worker.cores import Cores, fill_machine, usable_cores
from rayinfer.engine.worker.cpu_kernels import use_cpu_kernels
from rayinfer.engine.worker.encoder_decoder_runner import EncoderDecoderRunner
from rayinfer.engine.worker.graphs.cuda_graphs import CudaGraphs
from rayinfer.engine.worker.graphs.decode_graphs import DecodeGraphs, Draw
from rayinfer.engine.worker.graphs.graph_input_buffers import Padding
from rayinfer.engine.worker.in_process_executor import InProcessExecutor
from rayinfer.engine.worker.model_memory import ModelMemory
from rayinfer.engine.worker.model_runner import ModelRunner
from rayinfer.engine.worker.reserved_memory import reserved_memory_bytes
from rayinfer.engine.worker.resolved_config import SettledConfig, settle
from rayinfer.engine.worker.static_runner import StaticRunner, StaticShapes
from rayinfer.engine.worker.warm_up import first_steps
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.kv_cache.cache_tensors import BlockShape
from rayinfer.kv_cache.pool_size import count_kv_blocks, count_offload_blocks, count_static_blocks
from rayinfer.models.decoder import Decoder
from rayinfer.models.encoder_decoder import EncoderDecoder
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.models.random_weights import random_decoder
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_weights import load_packed_decoder
from rayinfer.start_steps import start_step
from rayinfer.tensor_parallel import UNSHARDED
from rayinfer_kernels import ops

_CACHE_TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}  # else the model's


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPart:
    """A rank's executor, and the sizes that the scheduler needs."""

    config: SettledConfig  # the settings that it was built with: the same batch sizes on every rank
    executor: InProcessExecutor
    link: PipelineLink | None  # to the stages before and after, where there are several
    num_blocks: int  # of the pool, for requests: the same on every rank
    num_offload_blocks: int
    max_model_len: int
    largest_graph: int  # requests in the largest captured step; 0: none is captured


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """Settings, model and device, resolved before anything is loaded."""

    config: SettledConfig
    model: ModelConfig
    folder: Path
    device: torch.device
    group: Ranks | None  # None for a rank that is alone


def build_part(config: EngineConfig, folder: Path, group: Ranks | None = None) -> ModelPart:
    """Load this rank's weights and give them their blocks; with a group, as many as every rank has room for."""
    device = group.device if group is not None else any_device()
    _use_threads(config, device)
    model = read_model_config(folder)
    settled = settle(config, model, device.type, group)
    setting = _Setting(config=settled, model=model, folder=folder, device=device, group=group)
    memory = _model_memory(setting)
    num_blocks = memory.num_blocks - num_spare_blocks(settled)
    max_model_len = _max_model_len(setting, num_blocks)
    stage = _stage(setting)
    runner = _runner(setting, memory, max_model_len, stage)
    graphs = _graphs(setting, runner, max_model_len) if _uses_graphs(setting) else None
    if graphs is not None:
        with start_step("capturing CUDA graphs"):
            runner.record(graphs)
    return ModelPart(
        config=settled,
        executor=InProcessExecutor(
            runner, memory, _cores(settled, device), supports_async_scheduling=_plans_ahead(settled, device)
        ),
        link=stage.link,
        num_blocks=num_blocks,
        num_offload_blocks=memory.num_offload_blocks,
        max_model_len=max_model_len,
        largest_graph=0 if graphs is None else graphs.sizes[-1],
    )


def num_spare_blocks(config: EngineConfig) -> int:
    """Count scratch blocks: a static engine's padding uses the pool's last block."""
    return 1 if config.engine == "static" else 0


def _plans_ahead(config: EngineConfig, device: torch.device) -> bool:
    if config.async_scheduling is None:
        return device.type == "cuda" and place_of(config, 0).world_size == 1
    return config.async_scheduling


def _use_threads(config: EngineConfig, device: torch.device) -> None:
    num_ranks = place_of(config, 0).world_size
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    elif num_ranks > 1 and device.type == "cpu":
        torch.set_num_threads(max(1, len(usable_cores()) // num_ranks))
    if device.type == "cpu":
        use_cpu_kernels()
    else:
        rayinfer_kernels.configure_gpu()


def _cores(config: EngineConfig, device: torch.device) -> Cores | None:
    num_threads, num_ranks = torch.get_num_threads(), place_of(config, 0).world_size
    wanted = config.pin_threads if config.pin_threads is not None else fill_machine(num_threads, num_ranks)
    return Cores(num_threads, cache_folder() / "cores") if wanted and device.type == "cpu" else None


def _stage(setting: _Setting) -> Stage:
    group = setting.group
    if group is None:
        return ONLY_STAGE
    if group.everybody is None:
        return Stage(group.place)
    dtype = torch_dtype(setting.config.dtype, setting.model)
    link = PipelineLink(group.place, group.everybody, setting.device, setting.model.hidden_size, dtype)
    return Stage(group.place, link)


def _runner(setting: _Setting, memory: ModelMemory, max_model_len: int, stage: Stage) -> ModelRunner:
    """Build the model runner and warm it up: where kernels need compiling, and a static one in each shape."""
    config, model, device = setting.config, setting.model, setting.device
    decoder, num_rows = memory.decoder, config.num_rows
    assert decoder is not None, "the weights are gone"
    num_sampler_rows = num_rows + num_spare_blocks(config)  # the spare block has a row, too
    sampler = Sampler(num_sampler_rows, model.vocab_size, device, forced_end_token_id=model.forced_end_token_id)
    if config.engine == "dynamic":
        plain = ModelRunner(decoder, sampler, device, stage)
        most = min(config.max_num_batched_tokens, num_rows * max_model_len)  # of any step, and memory is kept for it
        steps = first_steps(most, min(most, max_model_len), num_rows, config.block_size, Padding())
        if _has_gpu_kernels(setting):
            with start_step("compiling kernels for prompts"):
                for plan in steps:
                    plain.submit(plan).result()
        return plain
    shapes = StaticShapes(
        num_rows=num_rows,
        max_step_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=config.block_size,
        spare_block=memory.num_blocks - 1,
    )
    runner = StaticRunner(decoder, sampler, device, shapes, stage)
    if isinstance(decoder, EncoderDecoder):
        max_read_tokens = config.max_num_batched_tokens
        runner = EncoderDecoderRunner(decoder, sampler, device, shapes, stage, max_read_tokens=max_read_tokens)
    with start_step("taking the first steps of each shape"):
        runner.warm_up()
    return runner


def _has_gpu_kernels(setting: _Setting) -> bool:
    """Whether one rank runs a decoder by kernels made for GPUs."""
    model, device = setting.model, setting.device
    is_alone = setting.group is None and model.answers is None
    dtype = torch_dtype(setting.config.dtype, model)
    return device.type == "cuda" and is_alone and rayinfer_kernels.has_kernels(device, dtype)


def _uses_graphs(setting: _Setting) -> bool:
    """Whether decoding steps are captured: by such kernels alone, as the reference reads values on the host."""
    return _has_gpu_kernels(setting) and setting.config.max_cudagraph_capture_size > 0


def _graphs(setting: _Setting, runner: ModelRunner, max_model_len: int) -> DecodeGraphs:
    return DecodeGraphs(
        num_rows=runner.num_rows,
        max_blocks=-(-max_model_len // setting.config.block_size),
        device=setting.device,
        new_graph=CudaGraphs(),
        last_tokens=runner.last_tokens,
        padding=Padding(),
        draw=Draw(ops.uniform, ops.sample_rows),
        max_capture_size=setting.config.max_cudagraph_capture_size,
    )


def _reserved_bytes(setting: _Setting) -> int:
    """GPU memory to keep free of blocks: activations, and graphs, which are captured when the blocks are there."""
    if setting.device.type != "cuda":
        return 0
    longest = _longest_sequence(setting.config, setting.model)
    return reserved_memory_bytes(setting.config, setting.model, longest, has_graphs=_uses_graphs(setting))


def _model_memory(setting: _Setting) -> ModelMemory:
    """Load the weights and reserve the blocks, as many as there is room for beside them."""
    config, model, device = setting.config, setting.model, setting.device
    dtype = torch_dtype(config.dtype, model)
    load = _loader(setting, dtype)
    decoder = load()
    shape = BlockShape(
        num_layers=decoder.num_layers_here,
        block_size=config.block_size,
        num_kv_heads=decoder.num_kv_heads_here,
        head_dim=model.head_dim,
        dtype=_CACHE_TYPES.get(config.kv_cache_dtype, dtype),
        computed_on=device,
    )
    num_blocks, num_offload_blocks = _num_blocks(setting, shape)
    longest = _longest_sequence(config, model)

    def make_ready(decoder: Decoder) -> None:
        # Some rotary scalings look at the longest sequence: at what is allowed, for what fits differs between machines.
        decoder.prepare(dtype, device, _max_model_len(setting, num_blocks), longest)
        if isinstance(decoder, EncoderDecoder):
            decoder.allocate_sources(config.num_rows + 1, longest, dtype, device)

    def load_again() -> Decoder:
        if read_model_config(setting.folder) != model:
            raise ModelLoadError(f"{setting.folder}: config.json is not what it was when the engine was built")
        again = load()
        make_ready(again)
        return again

    with start_step("taking memory for the KV cache"):
        make_ready(decoder)
        return ModelMemory(
            decoder, load_again, shape, num_blocks=num_blocks, num_offload_blocks=num_offload_blocks, device=device
        )


def _loader(setting: _Setting, dtype: torch.dtype) -> Callable[[], Decoder]:
    """Make the function that loads the weights, now and after a deep sleep."""
    config, share = setting.config, UNSHARDED if setting.group is None else setting.group.share
    if config.load_format == "dummy":
        if config.quantization is not None:
            raise ConfigError("quantization needs weights that mean something: load_format must not be dummy")
        return partial(random_decoder, setting.folder, dtype, setting.device, share)
    return partial(
        load_packed_decoder,
        setting.folder,
        dtype,
        setting.device,
        quantization=config.quantization,
        cache=PackedCache(cache_folder() / "packed", max_bytes=packed_cache_bytes()),
        shard=share,
    )


def _num_blocks(setting: _Setting, shape: BlockShape) -> tuple[int, int]:
    """Count the blocks of both pools that all ranks have memory for."""
    config, group = setting.config, setting.group
    num_ranks = 1 if group is None else group.place.world_size
    host_bytes = shape.num_bytes * num_ranks  # ranks share the host's memory: so much takes a block in all of them
    block_bytes = host_bytes if setting.device.type == "cpu" else shape.num_bytes
    reserved = _reserved_bytes(setting)
    if config.engine == "static":
        # An encoder-decoder's sources take as much again as its answers.
        row_bytes = block_bytes if setting.model.answers is None else 2 * block_bytes
        longest = _longest_sequence(config, setting.model)
        num_blocks = num_spare_blocks(config) + count_static_blocks(
            *(config, longest, row_bytes, setting.device), num_rows=config.num_rows, reserved_bytes=reserved
        )
    else:
        num_blocks = count_kv_blocks(config, block_bytes, setting.device, reserved_bytes=reserved)
    num_offload_blocks = count_offload_blocks(config, host_bytes)
    if group is None:
        return num_blocks, num_offload_blocks
    least, least_offload = group.agree_least([num_blocks, num_offload_blocks])
    return least, least_offload


def _max_model_len(setting: _Setting, num_blocks: int) -> int:
    """The longest sequence that the model, the settings and the pool allow."""
    return min(_longest_sequence(setting.config, setting.model), num_blocks * setting.config.block_size)


def _longest_sequence(config: EngineConfig, model: ModelConfig) -> int:
    """Return the limit of the model and the settings, whatever the pool's size."""
    if config.max_model_len is not None and config.max_model_len > model.longest_sequence:
        raise ConfigError(f"max_model_len {config.max_model_len} is above the model's {model.longest_sequence}")
    return config.max_model_len or model.max_position_embeddings
