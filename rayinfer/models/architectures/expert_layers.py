"""The mixture of experts that a checkpoint's config.json describes."""

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.mixture_of_experts import MixtureOfExperts
from rayinfer.models.config_fields import count
from rayinfer.models.model_config import ModelConfig


def mixture_of_experts(config: ModelConfig, intermediate_size: int, *, renormalize: bool) -> MixtureOfExperts:
    """Build a layer's experts, each of the given width; raises ValueError or KeyError for a wrong or missing field."""
    if config.hidden_act != "silu":
        raise UnsupportedArchitecture(f"hidden_act {config.hidden_act!r} is not supported, only 'silu'")
    num_experts = count(config.raw, "num_local_experts", "num_experts")
    experts_per_token = count(config.raw, "num_experts_per_tok")
    if experts_per_token > num_experts:
        raise ValueError(f"num_experts_per_tok {experts_per_token} is more than the {num_experts} experts there are")
    return MixtureOfExperts(
        config.hidden_size,
        intermediate_size,
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        renormalize=renormalize,
    )
