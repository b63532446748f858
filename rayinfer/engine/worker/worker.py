"""Worker of one rank: its weights, KV blocks and model runner, for each kind of engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import rayinfer_kernels
from rayinfer.adapters.adapter import AdapterLimits
from rayinfer.adapters.adapter_memory import AdapterMemory
from rayinfer.adapters.target_layers import TargetLayers
from rayinfer.config import EngineConfig, cache_folder
from rayinfer.decoding.sampler import Sampler
from rayinfer.engine.ranks.pipeline_link import ONLY_STAGE, PipelineLink, Stage
from rayinfer.engine.ranks.rank_coordinates import Ranks, any_device
from rayinfer.engine.worker.cores import cores_of, pinned, set_threads
from rayinfer.engine.worker.draft_models.draft_checks import draft_folder
from rayinfer.engine.worker.draft_models.draft_memory import DraftWeights
from rayinfer.engine.worker.draft_models.eagle_memory import EagleWeights
from rayinfer.engine.worker.encoder_decoder_runner import EncoderDecoderRunner
from rayinfer.engine.worker.graphs.cuda_graphs import CudaGraphs
from rayinfer.engine.worker.graphs.decode_graphs import DecodeGraphs, Draw
from rayinfer.engine.worker.in_process_executor import InProcessExecutor
from rayinfer.engine.worker.memory.model_memory import ModelMemory
from rayinfer.engine.worker.memory.reserved_memory import reserved_memory_bytes
from rayinfer.engine.worker.memory.window_pool import window_pool
from rayinfer.engine.worker.model_runner import ModelRunner
from rayinfer.engine.worker.padding import Padding
from rayinfer.engine.worker.resolved_config import resolve_config
from rayinfer.engine.worker.static_runner import StaticRunner, StaticShapes
from rayinfer.engine.worker.tokenizer_file import read_tokenizer_file
from rayinfer.engine.worker.warm_up import warm_up_plans
from rayinfer.engine.worker.weight_loading import reload_weights, weight_loader
from rayinfer.errors import ConfigError
from rayinfer.grammars.compiler import GrammarCompiler
from rayinfer.kv_cache.cache_tensors import BlockShape
from rayinfer.kv_cache.pool_size import (
    count_blocks_taken,
    count_kv_blocks,
    count_offload_blocks,
    count_static_blocks,
)
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.decoder import Decoder
from rayinfer.models.eagle3 import is_eagle3_folder
from rayinfer.models.encoder_decoder import EncoderDecoder
from rayinfer.models.loader import empty_decoder, torch_dtype
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.models.prefetch_tuning import tune_prefetch
from rayinfer.startup_steps import startup_step
from rayinfer.tensor_parallel import UNSHARDED
from rayinfer_kernels import ops

_CACHE_TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}  # else the model's


def build_worker(config: EngineConfig, folder: Path, group: Ranks | None = None) -> "Worker":
    """Load this rank's weights and allocate its KV blocks; in a group, as many as every rank has memory for."""
    model = read_model_config(folder)
    if model.seq2seq is not None:
        return Seq2SeqWorker(config, model, folder, group)
    return (StaticWorker if config.engine == "static" else PagedWorker)(config, model, folder, group)


class Worker(ABC):
    """A rank's executor, and the sizes that the scheduler needs: the same on every rank."""

    is_static = False  # whether the batch and its memory have one size, allocated at once
    num_scratch = 0  # KV blocks, and rows of the sampler, that padding uses
    num_window_pages = 0  # of sliding-window layers, where these have a pool of their own

    def __init__(self, config: EngineConfig, model: ModelConfig, folder: Path, group: Ranks | None) -> None:
        self._model, self.folder, self._group = model, folder, group
        self._device = group.device if group is not None else any_device()
        set_threads(config, self._device)
        self.config = resolve_config(config, self._device.type, is_static=self.is_static, group=group)
        self._dtype = torch_dtype(self.config.dtype, model)
        self.longest_sequence = _longest_sequence(self.config, model)
        self._stage = self._pipeline_stage()
        self.grammars = self._new_grammars()
        adapters = self._new_adapter_memory()
        draft_weights = self._load_draft_model()
        self._states_read = () if draft_weights is None else draft_weights.states_read(model)
        memory = self._load_model(0 if draft_weights is None else draft_weights.shape.num_bytes)
        self.num_offload_blocks = memory.num_offload_blocks
        self.block_views = memory.block_views
        runner = self._new_runner(memory)
        runner.adapters = adapters
        graphs = self._new_graphs(runner) if self._uses_graphs else None
        self.max_cudagraph_capture_size = 0 if graphs is None else graphs.sizes[-1]  # in requests; 0: no graphs
        if graphs is not None:
            with startup_step("capturing CUDA graphs"):
                runner.record(graphs)
        cores = cores_of(self.config, self._device)
        self.draft = None
        if draft_weights is not None:
            self.draft = draft_weights.with_blocks(
                memory.num_blocks,
                runner=runner,
                max_model_len=self.max_model_len,
                hold_cores=partial(pinned, cores),
            )
        self.executor = InProcessExecutor(
            *(runner, memory, cores),
            supports_async_scheduling=self.config.async_scheduling,
            draft=self.draft,
            adapters=adapters,
        )

    @property
    def link(self) -> PipelineLink | None:
        """The link to the pipeline stages before and after, if there are several."""
        return self._stage.link

    @property
    def caches_prefixes(self) -> bool:
        """Whether blocks of equal prefixes can be shared."""
        return self.config.enable_prefix_caching

    @property
    def supports_drafts(self) -> bool:
        """Whether a step may verify drafts."""
        return not self.no_drafts_because

    @property
    def no_drafts_because(self) -> str:
        """Why no step verifies drafts; empty where steps do: on CPUs, in any shape."""
        if self._device.type != "cpu":
            return f"not on {self._device.type}"
        return "steps of a fixed batch" if self.is_static else ""

    @property
    def num_padding_tokens(self) -> int:
        """Tokens that padding may add to a step."""
        return 0

    @abstractmethod
    def _count_blocks(self, block_bytes: int, reserved_bytes: int) -> int:
        """Count the blocks of the KV pool, scratch blocks included."""

    @abstractmethod
    def _new_runner(self, memory: ModelMemory) -> ModelRunner:
        """Make the model runner and warm it up."""

    def _preparation(self) -> Callable[[Decoder], None]:
        """Make the function that prepares a loaded decoder; it must not refer to the worker, which would be a cycle."""
        return partial(
            _prepare,
            self._dtype,
            self._device,
            self.max_model_len,
            self.longest_sequence,
            self._states_read,
            self.config.num_adapter_slots,
            self.config.max_num_batched_tokens,
            self.window_pool is not None and not self.window_pool.all_layers_slide,
        )

    @property
    def _has_gpu_kernels(self) -> bool:
        """Whether the model runs by kernels made for GPUs, on one rank."""
        is_on_gpu = self._device.type == "cuda" and self._group is None
        return is_on_gpu and rayinfer_kernels.has_kernels(self._device, self._dtype)

    @property
    def _uses_graphs(self) -> bool:
        """Whether decode steps are captured: with GPU kernels only, as the reference reads values on the host."""
        return self._has_gpu_kernels and self.config.max_cudagraph_capture_size > 0

    def _pipeline_stage(self) -> Stage:
        group = self._group
        if group is None:
            return ONLY_STAGE
        if group.world is None:
            return Stage(group.coordinates)
        hidden_size = self._model.hidden_size
        return Stage(
            group.coordinates, PipelineLink(group.coordinates, group.world, self._device, hidden_size, self._dtype)
        )

    def _new_adapter_memory(self) -> AdapterMemory | None:
        if not self.config.enable_lora:
            return None
        config = self.config
        sizes = {"max_bytes": config.max_cpu_lora_bytes, "max_slot_bytes": config.max_lora_bytes}
        limits = AdapterLimits(max_rank=config.max_lora_rank, dtype=self._dtype, **sizes)
        return AdapterMemory(TargetLayers(empty_decoder(self.folder)), limits, self._device)

    def _load_draft_model(self) -> DraftWeights | EagleWeights | None:
        if self.config.draft_model is None or self._stage.coordinates.rank > 0:  # rank 0 plans, and drafts alone
            return None
        with startup_step("loading the draft model"):
            cache_type = _CACHE_TYPES.get(self.config.kv_cache_dtype)
            if is_eagle3_folder(folder := draft_folder(self.config.draft_model)):
                return EagleWeights(self.config, folder, self._dtype, cache_type, self.folder)
            return DraftWeights(self.config, folder, cache_type)

    def _load_model(self, draft_block_bytes: int) -> ModelMemory:
        """Load the weights and allocate as many blocks as the remaining memory holds, and a draft model as many."""
        shard = UNSHARDED if self._group is None else self._group.shard
        load = weight_loader(self.config, self.folder, self._dtype, self._device, shard)
        decoder = load()
        shape = BlockShape(
            num_layers=decoder.num_layers_here,
            block_size=self.config.block_size,
            num_kv_heads=decoder.num_kv_heads_here,
            head_dim=self._model.head_dim,
            dtype=_CACHE_TYPES.get(self.config.kv_cache_dtype, self._dtype),
            computed_on=self._device,
        )
        self.block_shape = shape
        num_blocks, num_offload_blocks = self._agree_on_blocks(shape, draft_block_bytes)
        num_taken = count_blocks_taken(self.config, shape.num_bytes, self._device.type)
        sizes: dict[str, Any] = {"num_offload_blocks": num_offload_blocks, "num_blocks_taken": num_taken}
        longest, kind = self.longest_sequence, self._device.type
        self.window_pool = window_pool(self.config, decoder, self.folder, longest, kind, self._group)
        if self.window_pool is not None:
            num_steps_at_once = 2 if self.config.async_scheduling else self.config.pipeline_parallel_size
            counts = self.window_pool.divide(self.config, num_blocks, num_steps_at_once, self._group)
            num_blocks, self.num_window_pages = counts
            sizes |= {"slides": self.window_pool.slides, "num_window_pages": self.num_window_pages}
        self.num_blocks = num_blocks - self.num_scratch  # of the pool, for requests
        self.max_model_len = min(self.longest_sequence, self.num_blocks * self.config.block_size)
        prepare = self._preparation()
        load_again = partial(reload_weights, load, prepare, self.folder, self._model)
        with startup_step("taking memory for the KV cache"):
            prepare(decoder)
            return ModelMemory(decoder, load_again, shape, device=self._device, num_blocks=num_blocks, **sizes)

    def _agree_on_blocks(self, shape: BlockShape, draft_block_bytes: int) -> list[int]:
        """Count the blocks of both pools that all ranks have memory for."""
        host_bytes = shape.num_bytes * self.config.num_ranks  # ranks share the host's memory
        block_bytes = draft_block_bytes + (host_bytes if self._device.type == "cpu" else shape.num_bytes)
        reserved_bytes = 0  # GPU memory for activations, and for graphs, which are captured after the allocation
        if self._device.type == "cuda":
            padding, has_graphs = self.num_padding_tokens, self._uses_graphs
            reserved_bytes = reserved_memory_bytes(
                self.config, self._model, self.longest_sequence, num_padding_tokens=padding, has_graphs=has_graphs
            )
        counts = [self._count_blocks(block_bytes, reserved_bytes), count_offload_blocks(self.config, host_bytes)]
        return counts if self._group is None else self._group.reduce_min(counts)

    def _new_sampler(self) -> Sampler:
        num_rows, forced_end = self.config.num_rows + self.num_scratch, self._model.forced_end_token_id
        return Sampler(
            num_rows, self._model.vocab_size, self._device, forced_end_token_id=forced_end, grammars=self.grammars
        )

    def _new_grammars(self) -> GrammarCompiler | None:
        """Make the compiler of grammars, which reads the tokenizer when the first comes; None: no answer has one."""
        model = self._model
        if model.seq2seq is not None or model.forced_end_token_id is not None or not model.eos_token_ids:
            return None
        return GrammarCompiler(partial(read_tokenizer_file, self.folder), model.vocab_size, model.eos_token_ids)

    def _new_graphs(self, runner: ModelRunner) -> DecodeGraphs:
        return DecodeGraphs(
            num_rows=runner.num_rows,
            max_blocks=-(-self.max_model_len // self.config.block_size),
            device=self._device,
            new_graph=CudaGraphs(),
            future_tokens=runner.future_tokens,
            padding=Padding(),
            draw=Draw(ops.uniform, ops.sample_rows),
            max_capture_size=self.config.max_cudagraph_capture_size,
            has_windows=self.window_pool is not None and not self.window_pool.all_layers_slide,
        )


class PagedWorker(Worker):
    """Worker of a dynamic engine: the batch varies, and blocks are allocated to requests as they grow."""

    def _count_blocks(self, block_bytes: int, reserved_bytes: int) -> int:
        return count_kv_blocks(self.config, block_bytes, self._device, reserved_bytes=reserved_bytes)

    def _new_runner(self, memory: ModelMemory) -> ModelRunner:
        config = self.config
        runner = ModelRunner(memory.loaded_decoder, self._new_sampler(), self._device, self._stage)
        if self._has_gpu_kernels:
            most = min(config.max_num_batched_tokens, config.num_rows * self.max_model_len)  # tokens of a step
            longest = min(most, self.max_model_len)
            with startup_step("compiling kernels for prompts"):
                for plan in warm_up_plans(most, longest, config.num_rows, config.block_size, Padding()):
                    runner.submit(plan).result()
        return runner


class StaticWorker(Worker):
    """Worker of a static engine: a fixed batch with memory for `max_num_seqs` requests of `max_model_len` tokens."""

    is_static = True
    num_scratch = 1
    blocks_per_block = 1  # memory that a block of the pool takes, in blocks

    @property
    def num_padding_tokens(self) -> int:
        """Tokens that padding may add to a step."""
        return 2 * self.config.num_rows

    def _count_blocks(self, block_bytes: int, reserved_bytes: int) -> int:
        config, block_bytes = self.config, self.blocks_per_block * block_bytes
        size = (config, self.longest_sequence, config.block_size, block_bytes, self._device)
        return self.num_scratch + count_static_blocks(*size, num_rows=config.num_rows, reserved_bytes=reserved_bytes)

    def _new_runner(self, memory: ModelMemory) -> ModelRunner:
        shapes = StaticShapes(
            num_rows=self.config.num_rows,
            max_step_tokens=self.config.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            block_size=self.config.block_size,
            scratch_block=memory.num_blocks - 1,
        )
        runner = self._runner_of(memory.loaded_decoder, shapes)
        with startup_step("taking the first steps of each shape"):
            runner.warm_up()
        return runner

    def _runner_of(self, decoder: Decoder, shapes: StaticShapes) -> StaticRunner:
        return StaticRunner(decoder, self._new_sampler(), self._device, shapes, self._stage)


class Seq2SeqWorker(StaticWorker):
    """Worker of an encoder-decoder: a static one whose requests also keep what the encoder made of their source."""

    blocks_per_block = 2  # an encoded source takes as much memory as the longest output

    @property
    def caches_prefixes(self) -> bool:
        """No: equal output tokens may follow different sources."""
        return False

    @property
    def _has_gpu_kernels(self) -> bool:
        return False

    def _preparation(self) -> Callable[[Decoder], None]:
        num_rows = self.config.num_rows + self.num_scratch
        return partial(
            _prepare_for_sources, super()._preparation(), num_rows, self.longest_sequence, self._dtype, self._device
        )

    def _runner_of(self, decoder: Decoder, shapes: StaticShapes) -> StaticRunner:
        assert isinstance(decoder, EncoderDecoder), "an encoder-decoder's configuration without its model"
        most = self.config.max_num_batched_tokens
        return EncoderDecoderRunner(
            decoder, self._new_sampler(), self._device, shapes, self._stage, max_read_tokens=most
        )


def _prepare(
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    longest_sequence: int,
    states_read: Sequence[int],
    num_adapter_slots: int,
    max_num_batched_tokens: int,
    has_window_pool: bool,
    decoder: Decoder,
) -> None:
    if isinstance(decoder, CausalDecoder):
        decoder.reserve_positions(max_num_batched_tokens)
    if has_window_pool:
        assert isinstance(decoder, CausalDecoder), "checked before"
        decoder.use_window_pool()
    if num_adapter_slots:
        assert isinstance(decoder, CausalDecoder), "checked before"
        decoder.use_adapters(num_adapter_slots)
    if states_read:
        assert isinstance(decoder, CausalDecoder), "checked before"
        decoder.read_states(states_read)
    # Some rotary scalings depend on the longest sequence: the allowed one, since what fits differs by machine.
    decoder.prepare(dtype, device, max_model_len, longest_sequence)
    tune_prefetch(decoder, dtype, device, cache_folder() / "products")


def _prepare_for_sources(
    prepare: Callable[[Decoder], None],
    num_rows: int,
    longest_sequence: int,
    dtype: torch.dtype,
    device: torch.device,
    decoder: Decoder,
) -> None:
    prepare(decoder)
    assert isinstance(decoder, EncoderDecoder), "an encoder-decoder's configuration without its model"
    decoder.allocate_sources(num_rows, longest_sequence, dtype, device)


def _longest_sequence(config: EngineConfig, model: ModelConfig) -> int:
    """Return the limit of the model and the settings, whatever the pool's size."""
    if config.max_model_len is not None and config.max_model_len > model.longest_sequence:
        raise ConfigError(f"max_model_len {config.max_model_len} is above the model's {model.longest_sequence}")
    return config.max_model_len or model.max_position_embeddings
