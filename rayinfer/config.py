"""Engine settings, and all that is read from the environment."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rayinfer.errors import ConfigError
from rayinfer.sampling_defaults import check_overrides
from rayinfer.sampling_params import MAX_DRAFT_TOKENS
from rayinfer.setting_names import describe_validation_error, translate_names

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_PACKED_CACHE_BYTES = 20 * 2**30
DEFAULT_MODEL_COPIES_BYTES = 100 * 2**30

X86KernelPath = Literal["avx2", "avx2-vnni", "avx512", "avx512-vnni", "avx512-bf16"]
KernelPath = Literal["auto", "native", "portable", X86KernelPath, "neon-dotprod", "neon-bf16"]


class EngineConfig(BaseModel):
    """One engine's settings; `LLM`'s keywords, the CLI's flags and `build_llm_app`'s arguments are made from it.

    Settings that follow the device are None unless given: the engine's process fills them in, see
    `engine/worker/resolved_config.py`. Raises ConfigError when built through `engine_config`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field(DEFAULT_MODEL, min_length=1, description="folder, GGUF file, hub repository or embedded name")
    engine: Literal["dynamic", "static"] = Field(
        "dynamic",
        description="static: memory for max_num_seqs requests of max_model_len tokens each, allocated at once, and"
        " steps of few shapes, as always with encoder-decoders",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="arithmetic of the model; auto is the checkpoint's own"
    )
    load_format: Literal["auto", "dummy", "gguf"] = Field(
        "auto",
        description="gguf: matrices keep the blocks of their GGUF file (q4_0, q4_1, q4_k, q6_k, q8_0), on CPUs; dummy:"
        " random weights in the shape of config.json, for benchmarks without a checkpoint",
    )
    quantization: Literal["int8", "int8-dynamic", "int4", "fp8"] | None = Field(
        None,
        description="bits of the weights: int8 keeps activations as they are, int8-dynamic gives them eight bits, too,"
        " int4 does so and takes minutes the first time; fp8 gives both eight bits on GPUs, the others are for CPUs",
    )
    allow_inaccurate_quantization: bool = Field(
        False,
        description="accept a quantization or kv_cache_dtype that was not measured, or lost more than its limit",
    )
    trust_remote_code: bool = Field(
        False,
        description="load TorchScript archives, torch.export programs and AOTInductor packages that `rayinfer optimize`"
        " did not write on this machine: they can run any code",
    )
    max_model_len: int | None = Field(None, ge=2, description="longest prompt and answer together, in tokens")
    max_num_seqs: int | None = Field(
        None, ge=1, le=8192, description="requests that run at once (default by device: 64 on a CPU, 256 on a GPU)"
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=1, description="tokens that one step may compute (default by device: 512 on a CPU, 8,192 on a GPU)"
    )
    block_size: int | None = Field(
        None, ge=8, le=256, multiple_of=8, description="tokens in one KV block (default by device: 16 on each)"
    )
    num_kv_blocks: int | None = Field(None, ge=1, description="KV blocks; overrides memory_fraction")
    kv_cache_memory_bytes: int | None = Field(
        None, ge=1, description="memory for KV blocks in bytes; overrides memory_fraction"
    )
    memory_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of free memory for KV blocks (default by device: 2 GiB in all on a CPU, 0.9 on a GPU)",
    )
    kv_offload_bytes: int | None = Field(
        None, ge=1, description="host memory that keeps the KV blocks of preempted requests, in bytes (default: none)"
    )
    kv_store_gib: float | None = Field(
        None,
        gt=0,
        le=1 << 20,
        description="shared memory for KV blocks that all engines of a model on a machine share and that outlive each"
        " of them, in GiB (default: none); for CPUs",
    )
    kv_store_persists: bool = Field(
        False,
        description="keep the shared memory of kv_store_gib when the last engine that uses it ends, for later ones",
    )
    kv_store_disk_gib: float | None = Field(
        None,
        gt=0,
        le=1 << 20,
        description="disk space behind kv_store_gib for KV blocks, where they outlive a reboot, in GiB (default: none)",
    )
    kv_store_folder: str | None = Field(
        None, min_length=1, description="folder of kv_store_disk_gib (default: kv-store in the cache folder)"
    )
    kv_transfer: bool = Field(
        False,
        description="fetch KV blocks of a prompt that an engine on another machine has, over TCP, where a router finds"
        " that shorter than computing them; needs kv_store_gib",
    )
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = Field(
        "auto",
        description="eight bits for keys and values, int8 on CPUs and fp8 on GPUs; auto is the model's dtype",
    )
    enable_prefix_caching: bool = Field(True, description="reuse the KV blocks of equal prefixes")
    disable_hybrid_kv_cache_manager: bool | None = Field(
        None,
        description="keep the KV blocks of sliding-window layers as long as those of full attention, instead of giving"
        " back what lies behind the window (default: false on CPUs, true on GPUs)",
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=1024, description="ranks, each a process, among which every layer is sharded"
    )
    pipeline_parallel_size: int = Field(
        1, ge=1, le=1024, description="stages among which the layers are divided, each of tensor_parallel_size ranks"
    )
    num_threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads; default: the node's cores over its engines"
    )
    kernels: KernelPath = Field(
        "auto",
        description="instruction set of the CPU kernels, for comparisons: native is the processor's own; auto is"
        " RAYINFER_KERNELS of the environment, or native",
    )
    pin_threads: bool | None = Field(
        None,
        description="keep each CPU thread on a core of its own (default: where the engines leave no core free)",
    )
    deterministic: bool | None = Field(
        None,
        description="true: refuse to run where a request's bits may depend on the batch; with the compiled CPU kernels"
        " they never do",
    )
    weights_version: int = Field(
        0,
        ge=0,
        description="weight version: recorded in traces; cached prefixes of other versions are ignored;"
        " `rayinfer reload` increments it",
    )
    async_scheduling: bool | None = Field(
        None,
        description="plan a step while the one before computes, from tokens that are still on the device; each token"
        " is returned a step later (default: on a GPU)",
    )
    speculation: Literal["off", "auto"] | Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS)] = Field(
        "off",
        description="speculative decoding of requests that do not name it, on a CPU: tokens that repeat a request's own"
        " text or that its grammar forces are computed in one step; off, auto (as many as pay) or a number of tokens;"
        " answers are the same",
    )
    draft_model: str | None = Field(
        None,
        min_length=1,
        description="smaller model with the same tokenizer that speculation drafts with, in place of repeated text,"
        " named as model is, or a folder with an EAGLE-3 head of the model; its KV blocks share the memory of the"
        " model's; on CPUs; heads not with pipeline stages (default: none)",
    )
    enable_lora: bool = Field(False, description="let requests name LoRA adapters, which change the model for them")
    max_loras: int = Field(64, ge=1, le=4096, description="adapters that the requests of one step may have together")
    max_lora_rank: int = Field(64, ge=1, le=512, description="largest rank of an adapter")
    max_lora_bytes: int | None = Field(
        None,
        ge=1,
        description="memory for the adapters of running requests, in bytes of the model's type; a request whose adapter"
        " does not fit waits; on a GPU the KV blocks leave it free (default: max_loras alone limits them)",
    )
    max_cpu_loras: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        description="adapters kept in host memory; those in use always are (default: max_loras, or as many as"
        " max_cpu_lora_bytes holds)",
    )
    max_cpu_lora_bytes: int | None = Field(
        None,
        ge=1,
        description="host memory for adapters, in bytes of their files; the least recently used leave first, those in"
        " use never (default: max_cpu_loras alone limits them)",
    )
    recent_answers_bytes: int = Field(
        1 << 20,
        ge=0,
        le=1 << 34,
        description="host memory for recent answers, which speculative decoding also drafts from, each tenant's for it"
        " alone, in bytes; 0: only a request's own text",
    )
    enforce_eager: bool = Field(False, description="no CUDA graphs: every operation is launched separately")
    max_cudagraph_capture_size: int | None = Field(
        None,
        ge=1,
        le=8192,
        description="largest batch for which a CUDA graph is captured, in requests (default by device: max_num_seqs, at"
        " most 512, on a GPU)",
    )
    target_step_ms: float = Field(
        20.0,
        gt=0,
        le=10_000,
        description="of a model that does not generate: milliseconds that a step should take at most; longer steps"
        " raise throughput and latency",
    )
    max_wait_ms: float = Field(
        10.0,
        ge=0,
        le=1000,
        description="of a model that does not generate: milliseconds for which a step may wait for more items where"
        " they are likely; 0 never waits",
    )
    max_image_bytes: int = Field(10 * 2**20, ge=1, le=2**30, description="largest encoded image, in bytes")
    max_image_pixels: int = Field(25_000_000, ge=1, le=10**9, description="largest image, in pixels")
    max_image_side: int = Field(8192, ge=1, le=65_535, description="longest side of an image, in pixels")
    record_schedule: str | None = Field(
        None,
        description="folder that gets a file with the requests, plans and tokens of each engine that generates, prompts"
        " among them, for `rayinfer replay` (default: none)",
    )
    seed: int = Field(0, ge=0, lt=2**64, description="seeds the draws of requests without a seed")
    generation_config: str = Field(
        "auto",
        min_length=1,
        description="generation config with the default sampling parameters of requests: auto, the model's"
        " generation_config.json; none; or a folder with such a file",
    )
    override_generation_config: dict[str, Any] = Field(
        {},
        description='JSON object of keys that replace those of the generation config, as {"temperature": 0.5}; null'
        " removes a key",
    )

    def __init__(self, *model: str, **settings: Any) -> None:
        """Build from `model`, by position or name, and other settings by name."""
        if len(model) > 1:
            raise TypeError(f"settings other than the model must be named, got {len(model)} by position")
        if model and "model" in settings:
            raise TypeError("model is given twice: by position and by name")
        super().__init__(**(settings | {"model": model[0]} if model else settings))

    @property
    def num_adapter_slots(self) -> int:
        """Slots of adapters; 0 where requests may have none."""
        return self.max_loras if self.enable_lora else 0

    @property
    def num_ranks(self) -> int:
        """Processes among which the model is divided."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @field_validator("generation_config")
    @classmethod
    def _folder_is_absolute(cls, value: str) -> str:
        # An engine's process may have another working folder.
        return value if value in ("auto", "none") else str(Path(value).expanduser().absolute())

    @field_validator("record_schedule", "kv_store_folder")
    @classmethod
    def _folders_are_absolute(cls, value: str | None) -> str | None:
        return None if value is None else str(Path(value).expanduser().absolute())

    @field_validator("override_generation_config")
    @classmethod
    def _overrides_are_sampling_parameters(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            check_overrides(value, "override_generation_config")
        except ConfigError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        return value

    @model_validator(mode="before")
    @classmethod
    def _translate_other_names(cls, settings: Any) -> Any:
        return translate_names(settings) if isinstance(settings, dict) else settings

    @model_validator(mode="after")
    def _pool_has_one_size(self) -> Self:
        if self.num_kv_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ValueError("num_kv_blocks and kv_cache_memory_bytes both size the KV pool: give one of them")
        return self

    @model_validator(mode="after")
    def _store_has_memory_and_prefixes(self) -> Self:
        if self.kv_store_gib is None:
            if self.kv_transfer:
                raise ValueError("kv_transfer needs kv_store_gib: blocks are fetched into that store")
            if self.kv_store_disk_gib is not None or self.kv_store_folder is not None:
                raise ValueError("kv_store_disk_gib and kv_store_folder need kv_store_gib")
            if self.kv_store_persists:
                raise ValueError("kv_store_persists needs kv_store_gib")
            return self
        if self.kv_store_folder is not None and self.kv_store_disk_gib is None:
            raise ValueError("kv_store_folder needs kv_store_disk_gib")
        if not self.enable_prefix_caching:
            raise ValueError("kv_store_gib needs enable_prefix_caching: stored blocks are used by that cache")
        if self.record_schedule is not None:
            raise ValueError("kv_store_gib and record_schedule exclude each other: a schedule with loads cannot repeat")
        return self

    @model_validator(mode="after")
    def _adapters_of_a_step_fit_into_memory(self) -> Self:
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ValueError(f"max_cpu_loras {self.max_cpu_loras} must not be below max_loras {self.max_loras}")
        return self

    @model_validator(mode="after")
    def _graphs_are_not_switched_off(self) -> Self:
        if self.enforce_eager and self.max_cudagraph_capture_size:
            raise ValueError("max_cudagraph_capture_size and enforce_eager exclude each other: give one of them")
        return self

    @model_validator(mode="after")
    def _steps_overlap_on_one_rank(self) -> Self:
        if self.async_scheduling and self.num_ranks > 1:  # plans sent to other ranks need known tokens
            raise ValueError(f"async_scheduling must not be true with {self.num_ranks} ranks")
        return self


Config = EngineConfig  # nano-vllm's name


def engine_config(**settings: Any) -> EngineConfig:
    """Build an EngineConfig; raises ConfigError that names every setting at fault."""
    try:
        return EngineConfig(**settings)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error, EngineConfig)) from None


def cache_folder() -> Path:
    """Return the folder of models, compiled kernels and records of running services."""
    if folder := os.environ.get("RAYINFER_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rayinfer"


def kv_store_folder() -> Path:
    """Return the folder of KV blocks on the disk."""
    return cache_folder() / "kv-store"


def shared_memory_folder() -> Path:
    """Return the folder of this user's KV blocks in shared memory."""
    if folder := os.environ.get("RAYINFER_SHARED_MEMORY"):
        return Path(folder).expanduser().absolute()
    return Path("/dev/shm") / f"rayinfer-{os.getuid()}"


def default_key_file() -> Path:
    """Return the path of the API keys that services of this user ask for once it is there."""
    return cache_folder() / "api-keys.jsonl"


def default_batches_folder() -> Path:
    """Return the folder of files and batches of this user's services."""
    return cache_folder() / "batches"


def environment_api_keys() -> list[str]:
    """Return the API keys in RAYINFER_API_KEYS, which commas or white space separate."""
    return os.environ.get("RAYINFER_API_KEYS", "").replace(",", " ").split()


def kernel_path(setting: str = "auto") -> str:
    """Return the kernel path that a setting names, where auto is RAYINFER_KERNELS or native; raises ConfigError."""
    if setting != "auto":
        return setting
    path = os.environ.get("RAYINFER_KERNELS") or "native"
    names = get_args(KernelPath)
    if path not in names:
        raise ConfigError(f"RAYINFER_KERNELS must be one of {', '.join(names)}, got {path!r:.80}")
    return "native" if path == "auto" else path


def packed_cache_bytes() -> int:
    """Most bytes of packed weights in the cache folder; raises ConfigError for a setting that is no number."""
    return _bytes_of("RAYINFER_PACKED_CACHE_GIB", DEFAULT_PACKED_CACHE_BYTES)


def model_copies_bytes() -> int:
    """Most bytes of models from other nodes in the cache folder; raises ConfigError for a setting that is no number."""
    return _bytes_of("RAYINFER_MODEL_COPIES_GIB", DEFAULT_MODEL_COPIES_BYTES)


def _bytes_of(name: str, default: int) -> int:
    setting = os.environ.get(name, "")
    if not setting:
        return default
    try:
        gib = float(setting)
    except ValueError:
        gib = -1.0
    if not 0 <= gib < float("inf"):
        raise ConfigError(f"{name} must be a number of GiB, 0 or more, got {setting!r:.80}")
    return int(gib * 2**30)
