"""Engine settings with all defaults resolved: those that are not given follow the device."""

from rayinfer.config import EngineConfig
from rayinfer.engine.ranks.rank_coordinates import Ranks
from rayinfer.engine.worker.device_defaults import device_defaults

_NO_LIMIT = 1 << 62


class ResolvedConfig(EngineConfig):
    """An EngineConfig in which every setting that follows the device is set, except the size of the KV pool."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_cudagraph_capture_size: int  # 0: no CUDA graphs

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
    for name in ("max_num_seqs", "max_num_batched_tokens", "memory_fraction", "max_cudagraph_capture_size"):
        if settings[name] is None:
            settings[name] = getattr(defaults, name)
    sizes = [settings["max_num_seqs"], settings["max_num_batched_tokens"]]
    if group is not None:
        # The minimum over ranks is taken, so only rank 0 sends its sizes.
        sizes = group.reduce_min(sizes if group.coordinates.rank == 0 else [_NO_LIMIT] * len(sizes))
    settings["max_num_seqs"], settings["max_num_batched_tokens"] = sizes
    has_graphs = device_type == "cuda" and not config.enforce_eager
    largest = min(settings["max_cudagraph_capture_size"], *sizes)
    return ResolvedConfig(**settings | {"max_cudagraph_capture_size": largest if has_graphs else 0})
