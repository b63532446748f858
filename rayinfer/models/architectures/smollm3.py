"""SmolLM3 (Bakouch et al. 2025): Llama without rotary positions in every fourth layer."""

from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.config_fields import count, flag
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import SLIDING, layer_kinds


class SmolLM3ForCausalLM(CausalDecoder):
    """Layers without rotary positions see the order of tokens by the causal mask alone."""

    def __init__(self, config: ModelConfig) -> None:
        rotates = _rotating_layers(config)
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(
            config,
            rotary,
            windows=_windows(config, rotates),
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
            rotates=rotates,
        )
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary if is_rotated else None for is_rotated in rotates])


def _rotating_layers(config: ModelConfig) -> list[bool]:
    """Read `no_rope_layers`, which has 1 for a layer WITH rotary positions, or derive it from the interval."""
    listed = config.raw.get("no_rope_layers")
    if listed is None:
        interval = count(config.raw, "no_rope_layer_interval", default=4)
        return [(index + 1) % interval != 0 for index in range(config.num_layers)]
    if not isinstance(listed, list) or len(listed) < config.num_layers or any(each not in (0, 1) for each in listed):
        raise ValueError(f"no_rope_layers must be a list of {config.num_layers} numbers, 0 or 1, got {listed!r}")
    return [bool(each) for each in listed[: config.num_layers]]


def _windows(config: ModelConfig, rotates: list[bool]) -> list[int | None] | None:
    """With `use_sliding_window`, the layers that `layer_types` names, or those without rotary positions."""
    if not flag(config.raw, "use_sliding_window") or config.raw.get("sliding_window") is None:
        return None
    window, kinds = count(config.raw, "sliding_window"), layer_kinds(config)
    is_sliding = [kind == SLIDING for kind in kinds] if kinds else [not is_rotated for is_rotated in rotates]
    return [window if slides else None for slides in is_sliding]
