"""Engine settings with all defaults resolved: those that are not given follow the device."""

from dataclasses import asdict

from rayinfer.config import EngineConfig
from rayinfer.engine.ranks.rank_coordinates import Ranks
from rayinfer.engine.worker.device_defaults import device_defaults
from rayinfer.kv_cache.pool_size import CPU_POOL_BYTES

_NO_LIMIT = 1 << 62
_POOL_SETTINGS = ("num_kv_blocks", "kv_cache_memory_bytes", "memory_fraction")
_SIZE_SETTINGS = (
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", *_POOL_SETTINGS),
    *("async_scheduling", "max_cudagraph_capture_size", "enforce_eager"),
)


class ResolvedConfig(EngineConfig):
    """An EngineConfig in which every setting that follows the device is set, except the size of the KV pool."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    max_cudagraph_capture_size: int  # 0: no CUDA graphs
    async_scheduling: bool

    @property
    def num_rows(self) -> int:
        """Requests in a step at most: each that decodes has a token in every step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


def resolve_config(
    config: EngineConfig, device_type: str, *, is_static: bool = False, group: Ranks | None = None
) -> ResolvedConfig:
    """Fill in what was not given, for a device of type "cpu" or "cuda".

    All ranks of a group call it together: every rank uses the batch sizes of rank 0's device.
    """
    settings = {name: getattr(config, name) for name in EngineConfig.model_fields}
    defaults = device_defaults(device_type, is_static=is_static)
    for name, default in asdict(defaults).items():
        if settings[name] is None:
            settings[name] = default
    if config.async_scheduling is None and config.num_ranks > 1:
        settings["async_scheduling"] = False
    sizes = [settings["max_num_seqs"], settings["max_num_batched_tokens"]]
    if group is not None:
        # The minimum over ranks is taken, so only rank 0 sends its sizes.
        sizes = group.reduce_min(sizes if group.coordinates.rank == 0 else [_NO_LIMIT] * len(sizes))
    settings["max_num_seqs"], settings["max_num_batched_tokens"] = sizes
    has_graphs = device_type == "cuda" and not config.enforce_eager
    largest = min(settings["max_cudagraph_capture_size"], *sizes)
    return ResolvedConfig(**settings | {"max_cudagraph_capture_size": largest if has_graphs else 0})


def describe_choice(config: EngineConfig, device_type: str, *, is_static: bool = False) -> str:
    """Say which sizes of an engine were given, and where the others come from."""
    fields = EngineConfig.model_fields
    given = [name for name in _SIZE_SETTINGS if getattr(config, name) != fields[name].default]
    device = "a GPU" if device_type == "cuda" else "a CPU"
    choice = f"given {', '.join(given)}, the rest defaults of {device}" if given else f"defaults of {device}"
    if is_static or any(name in given for name in _POOL_SETTINGS):
        return choice
    return f"{choice} with {describe_default_pool(device_type)}"


def describe_default_pool(device_type: str) -> str:
    """Say how large the KV pool is by default."""
    fraction = device_defaults(device_type).memory_fraction
    if fraction is None:
        return f"{CPU_POOL_BYTES >> 30} GiB of KV cache"
    return f"memory_fraction {fraction:g}"
