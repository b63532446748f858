"""Builds an engine from its settings and a model's folder, on one rank or several."""

import importlib
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import rayinfer_kernels
from rayinfer.config import EngineConfig
from rayinfer.engine.drafting.drafter import Drafter
from rayinfer.engine.drafting.grammar_drafter import GrammarDrafter
from rayinfer.engine.drafting.prompt_lookup import PromptLookup
from rayinfer.engine.drafting.recent_answers import RecentAnswers
from rayinfer.engine.image_encoding import build_image_encoder
from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.loop.engine_adapters import HostAdapterLimits
from rayinfer.engine.loop.schedule_recorder import ScheduleRecorder
from rayinfer.engine.machine_store import check_store_settings, open_stored_blocks, open_transfers
from rayinfer.engine.plan.executor import Executor
from rayinfer.engine.plan.step_plan import Int32Array
from rayinfer.engine.ranks.rank_coordinates import any_device, coordinates_of
from rayinfer.engine.recording.recorder import FileRecorder
from rayinfer.engine.scheduling.kv_offload import KVOffload
from rayinfer.engine.scheduling.request import Request
from rayinfer.engine.scheduling.request_checks import checked_source
from rayinfer.engine.scheduling.scheduler import Scheduler
from rayinfer.engine.scheduling.slot_allocator import SlotAllocator
from rayinfer.engine.scheduling.stored_prefixes import StoredPrefixes
from rayinfer.engine.worker.cpu_kernels import use_cpu_kernels
from rayinfer.engine.worker.draft_models.draft_checks import check_draft_model
from rayinfer.engine.worker.images.image_encoder import ImageEncoder
from rayinfer.engine.worker.resolved_config import ResolvedConfig, describe_choice
from rayinfer.engine.worker.worker import Worker, build_worker
from rayinfer.errors import ConfigError
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.kv_cache.hybrid_blocks import HybridBlockManager
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.models.encoder_decoder_config import Seq2SeqSettings
from rayinfer.models.generation_config import default_sampling_params
from rayinfer.models.loader import check_num_ranks, torch_dtype
from rayinfer.models.model_config import ModelConfig, read_model_config
from rayinfer.optimization.mode_checks import check_device, check_quality, measured_model
from rayinfer.protocols import GenerationRequest, ModelDescription

if TYPE_CHECKING:
    from rayinfer.engine.ranks.rendezvous import RendezvousHost

_logger = logging.getLogger(__name__)


def build_engine(
    config: EngineConfig,
    folder: Path,
    *,
    rendezvous: "RendezvousHost | None" = None,
    group_timeout_s: float | None = None,
    recorder: ScheduleRecorder | None = None,
    drafter: Drafter | None = None,
) -> Engine:
    """Load the model and allocate its KV cache; `folder` is what `resolve_model` returned.

    With several ranks, this process is rank 0. The others are its child processes, or with a `rendezvous` those that
    join by `run_rank`, with the same settings. `group_timeout_s` (default: that of `LivenessLimits`) is for child
    processes: a rank that is stopped and sends nothing for so long is lost; one that is not stopped has the default,
    if that is longer. Raises EngineDead when a rank is lost or fails meanwhile. A `recorder`
    follows the schedule; with `record_schedule` a file does. A `drafter` takes the place of the engine's own, where the
    engine verifies drafts.
    """
    model = _check_settings(config, folder)
    defaults = default_sampling_params(config, folder)
    images = build_image_encoder(config, folder, model)
    if config.num_ranks == 1:
        worker = build_worker(config, folder)
        return _assemble(model, worker, worker.executor, config, defaults, recorder, drafter, images)
    # By name: engines of one rank load nothing for several.
    distributed = importlib.import_module("rayinfer.engine.distributed.build_group")
    worker, executor = distributed.build_group(config, folder, rendezvous, group_timeout_s)
    return _assemble(model, worker, executor, config, defaults, recorder, drafter, images)


class EncoderDecoderEngine(Engine):
    """Engine of an encoder-decoder: a request's prompt is the encoder's source, its output begins with a start token.

    Source and output may each be as long as `max_model_len`, the start token included. Penalties and bad sequences
    apply to the output.
    """

    def __init__(self, *, seq2seq: Seq2SeqSettings, **parts: Any) -> None:
        super().__init__(**parts)
        self._seq2seq = seq2seq

    def _checked_request(self, request: GenerationRequest, source_token_ids: Int32Array | None = None) -> Request:
        source_token_ids = checked_source(request, self.description)
        params = request.sampling_params
        if bad := self._seq2seq.bad_token_sequences:
            params = replace(params, bad_token_sequences=(*params.bad_sequences, *bad))
        request_to_decoder = replace(request, prompt_token_ids=[self._seq2seq.start_token_id], sampling_params=params)
        return super()._checked_request(request_to_decoder, source_token_ids)


def _assemble(
    model: ModelConfig,
    worker: Worker,
    executor: Executor,
    given: EngineConfig,
    defaults: Mapping[str, Any],
    recorder: ScheduleRecorder | None,
    drafter: Drafter | None,
    images: ImageEncoder | None,
) -> Engine:
    config, seq2seq, block_manager = worker.config, model.seq2seq, _block_manager(worker)
    stored_prefixes = _stored_prefixes(model, worker, block_manager)
    scheduler = Scheduler(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=worker.max_model_len,
        block_manager=block_manager,
        eos_token_ids=model.eos_token_ids,
        forced_end_token_id=model.forced_end_token_id,
        enable_prefix_caching=worker.caches_prefixes,
        offload=_offload(worker),
        stored_prefixes=stored_prefixes,
        adapters=SlotAllocator(config.num_adapter_slots, config.max_lora_bytes),
        max_concurrent_batches=executor.max_concurrent_batches,
        supports_async_scheduling=executor.supports_async_scheduling,
        **_drafting(worker, drafter),
    )
    description = ModelDescription(
        name=given.model,
        vocab_size=model.vocab_size,
        created=int(time.time()),
        async_scheduling=executor.supports_async_scheduling,
        **_sizes(worker, given),
        eos_token_ids=model.eos_token_ids,
        weights_version=config.weights_version,
        scores_prompts=seq2seq is None,
        supports_structured_outputs=worker.grammars is not None,
        default_sampling_params=defaults,
        bad_token_sequences=() if seq2seq is None else seq2seq.bad_token_sequences,
        kernels=_kernels(any_device(), torch_dtype(config.dtype, model)),
        device=_device(any_device(), config.num_ranks),
        kv_store=None if stored_prefixes is None else stored_prefixes.shared_store,
        takes_images=images is not None,
        speculation=_speculation(worker),
    )
    _logger.info("engine for %s: %s", description.name, description.capacity)
    parts: dict[str, Any] = {"description": description, "scheduler": scheduler, "executor": executor}
    parts |= {"grammars": worker.grammars, "images": images, "stored_blocks": _stored_blocks(model, worker)}
    if recorder is None and given.record_schedule is not None:
        recorder = FileRecorder(Path(given.record_schedule), _recorded(given, config, worker.num_blocks))
    if recorder is not None:
        parts |= {"recorder": recorder, "clock": recorder.clock}
    if seq2seq is None:
        return Engine(**parts, seed=config.seed, host_adapters=_host_adapters(config))
    return EncoderDecoderEngine(seq2seq=seq2seq, **parts, seed=config.seed)


def _sizes(worker: Worker, given: EngineConfig) -> dict[str, Any]:
    """Return the sizes in an engine's description."""
    config = worker.config
    return {
        "max_model_len": worker.max_model_len,
        "kv_blocks_total": worker.num_blocks,
        "kv_window_pages_total": worker.num_window_pages,
        "block_size": config.block_size,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_cudagraph_capture_size": worker.max_cudagraph_capture_size,
        "sizes_from": describe_choice(given, any_device().type, is_static=worker.is_static),
    }


def _block_manager(worker: Worker) -> BlockManager:
    size, caches_prefixes = (worker.num_blocks, worker.config.block_size), worker.caches_prefixes
    pool = worker.window_pool
    if pool is None:
        return BlockManager(*size, enable_prefix_caching=caches_prefixes)
    return HybridBlockManager(
        *size,
        num_window_pages=worker.num_window_pages,
        window=pool.window,
        enable_prefix_caching=caches_prefixes,
        all_layers_slide=pool.all_layers_slide,
    )


def _stored_prefixes(model: ModelConfig, worker: Worker, block_manager: BlockManager) -> StoredPrefixes | None:
    """Open the machine's KV block store, if the settings have one."""
    if worker.config.kv_store_gib is None:
        return None
    open_store = partial(
        open_transfers,
        worker.config,
        worker.folder,
        worker.block_shape,
        worker.block_views,
        **_of_blocks(model, worker),
    )
    return StoredPrefixes(block_manager, open_store)


def _stored_blocks(model: ModelConfig, worker: Worker) -> StoredBlocks | None:
    """Open that store for transfers between machines, if the settings have them."""
    if not worker.config.kv_transfer:
        return None
    return open_stored_blocks(worker.config, worker.folder, worker.block_shape, **_of_blocks(model, worker))


def _of_blocks(model: ModelConfig, worker: Worker) -> dict[str, Any]:
    """Return what blocks depend on beside the settings, for their identity."""
    kernels = _kernels(any_device(), torch_dtype(worker.config.dtype, model))
    return {"longest_sequence": worker.longest_sequence, "kernels": kernels}


def _host_adapters(config: ResolvedConfig) -> HostAdapterLimits | None:
    if not config.enable_lora:
        return None
    max_adapters = config.max_loras if config.max_cpu_lora_bytes is None else None
    return HostAdapterLimits(max_adapters=config.max_cpu_loras or max_adapters, max_bytes=config.max_cpu_lora_bytes)


def _offload(worker: Worker) -> KVOffload | None:
    num_blocks, caches_prefixes = worker.num_offload_blocks, worker.caches_prefixes
    return (
        KVOffload(num_blocks, worker.config.block_size, enable_prefix_caching=caches_prefixes) if num_blocks else None
    )


def _drafting(worker: Worker, given: Drafter | None) -> dict[str, Any]:
    """Return what the scheduler needs for drafts, where steps verify them."""
    config = worker.config
    if not worker.supports_drafts:
        return {}
    looks_up = config.recent_answers_bytes and worker.draft is None
    recent = RecentAnswers(config.recent_answers_bytes) if looks_up else None
    drafter: Drafter = PromptLookup(recent) if worker.draft is None else worker.draft.drafter
    if worker.grammars is not None:
        drafter = GrammarDrafter(worker.grammars, drafter)
    return {"drafter": given or drafter, "speculation": config.speculation, "recent_answers": recent}


def _speculation(worker: Worker) -> str:
    """Say what speculative decoding does, if the settings ask for it."""
    config = worker.config
    if config.speculation == "off":
        return ""
    if worker.no_drafts_because:
        return f"no speculation ({worker.no_drafts_because})"
    drafter = "of repeated text" if config.draft_model is None else f"by {config.draft_model}"
    return f"speculation {config.speculation} {drafter}"


def _recorded(given: EngineConfig, resolved: EngineConfig, num_blocks: int) -> EngineConfig:
    """Return settings that make the same schedule on any device: those that were given, and the sizes that followed."""
    sizes = {name: getattr(resolved, name) for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")}
    return given.model_copy(update={**sizes, "num_kv_blocks": num_blocks})


def _check_settings(config: EngineConfig, folder: Path) -> ModelConfig:
    """Raise ConfigError for what this machine's devices or the model cannot do; returns the model's configuration."""
    model, device = read_model_config(folder), any_device()
    dtype = torch_dtype(config.dtype, model)
    check_device(config, device, dtype)
    check_store_settings(config, model, device)
    if config.enable_lora and config.record_schedule is not None:
        raise ConfigError("enable_lora and record_schedule exclude each other: a replay has no adapters")
    check_draft_model(config, folder, model, device)
    if config.num_ranks > 1:
        check_num_ranks(folder, coordinates_of(config, 0))
    measured = measured_model(config.model, folder)
    for mode in (config.quantization, None if config.kv_cache_dtype == "auto" else f"{config.kv_cache_dtype}-kv"):
        if mode is not None:
            check_quality(mode, is_inaccuracy_allowed=config.allow_inaccurate_quantization, model=measured)
    if device.type == "cpu":
        use_cpu_kernels(config.kernels)
    if config.deterministic:
        _check_determinism(device, dtype)
    return model


def _kernels(device: torch.device, dtype: torch.dtype) -> str:
    """Return the name of what computes the model: a CPU kernel path, triton, or torch."""
    if not rayinfer_kernels.has_kernels(device, dtype):
        return "torch"
    return rayinfer_kernels.cpu_kernels_status().name if device.type == "cpu" else "triton"


def _device(device: torch.device, num_ranks: int) -> str:
    """Name the CPU threads or GPUs of an engine."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return name if num_ranks == 1 else f"{num_ranks} x {name}"
    num_threads = torch.get_num_threads() * num_ranks
    return f"{num_threads} CPU thread{'' if num_threads == 1 else 's'}"


def _check_determinism(device: torch.device, dtype: torch.dtype) -> None:
    if not rayinfer_kernels.is_batch_invariant(device, dtype):
        raise ConfigError(
            f"deterministic must not be true with {dtype} on a {device.type}: only the compiled CPU kernels keep "
            "results independent of the batch, in float32 and bfloat16 "
            f"({rayinfer_kernels.cpu_kernels_status().detail})"
        )
