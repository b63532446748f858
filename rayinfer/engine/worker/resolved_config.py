"""The engine's settings with nothing left open: what was not given follows the model and the device."""

from rayinfer.config import EngineConfig
from rayinfer.engine.ranks.rank_coordinates import Ranks
from rayinfer.engine.worker.device_defaults import device_defaults
from rayinfer.models.model_config import ModelConfig

_NO_LIMIT = 1 << 62


class SettledConfig(EngineConfig):
    """An EngineConfig in which no setting that follows the device is None, but for the size of the KV pool."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_cudagraph_capture_size: int  # 0: no CUDA graphs

    @property
    def num_rows(self) -> int:
        """Requests in a step at most: each that decodes has a token in every step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


def settle(config: EngineConfig, model: ModelConfig, device_type: str, group: Ranks | None = None) -> SettledConfig:
    """Fill in what was not given, for a device of type "cpu" or "cuda".

    All ranks of a group call it together: the sizes of a batch follow the device of rank 0 on every rank.
    """
    settings = {name: getattr(config, name) for name in EngineConfig.model_fields}
    if model.answers is not None:
        # The tokens of its answers do not say what they answer: they are no cached prefixes.
        settings |= {"engine": "static", "enable_prefix_caching": False}
    defaults = device_defaults(device_type, is_static=settings["engine"] == "static")
    for name in ("max_num_seqs", "max_num_batched_tokens", "memory_fraction", "max_cudagraph_capture_size"):
        if settings[name] is None:
            settings[name] = getattr(defaults, name)
    sizes = [settings["max_num_seqs"], settings["max_num_batched_tokens"]]
    if group is not None:
        # The minimum over ranks counts, so only rank 0 gives sizes.
        sizes = group.reduce_min(sizes if group.coordinates.rank == 0 else [_NO_LIMIT] * len(sizes))
    settings["max_num_seqs"], settings["max_num_batched_tokens"] = sizes
    has_graphs = device_type == "cuda" and not config.enforce_eager
    largest = min(settings["max_cudagraph_capture_size"], *sizes)
    return SettledConfig(**settings | {"max_cudagraph_capture_size": largest if has_graphs else 0})
