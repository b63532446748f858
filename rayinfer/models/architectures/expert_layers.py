"""The mixture of experts that a checkpoint's config.json describes."""

from typing import NamedTuple

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.layers.mixture_of_experts import MixtureOfExperts
from rayinfer.models.config_fields import count
from rayinfer.models.model_config import ModelConfig


class ExpertCounts(NamedTuple):
    """The number of experts in a layer, and that of those that compute a token."""

    num_experts: int
    experts_per_token: int


def expert_counts(config: ModelConfig) -> ExpertCounts:
    """Read the numbers of experts; raises ValueError or KeyError for a wrong or missing field."""
    num_experts = count(config.raw, "num_local_experts", "num_experts")
    experts_per_token = count(config.raw, "num_experts_per_tok")
    if experts_per_token > num_experts:
        raise ValueError(f"num_experts_per_tok {experts_per_token} is more than the {num_experts} experts there are")
    return ExpertCounts(num_experts, experts_per_token)


def mixture_of_experts(config: ModelConfig, intermediate_size: int, *, renormalize: bool) -> MixtureOfExperts:
    """Build a layer's experts, each of the given width; raises ValueError or KeyError for a wrong or missing field."""
    if config.hidden_act != "silu":
        raise UnsupportedArchitecture(f"hidden_act {config.hidden_act!r} is not supported, only 'silu'")
    counts = expert_counts(config)
    return MixtureOfExperts(
        config.hidden_size,
        intermediate_size,
        num_experts=counts.num_experts,
        experts_per_token=counts.experts_per_token,
        renormalize=renormalize,
    )
