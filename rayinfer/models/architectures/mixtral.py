"""Mixtral (Jiang et al. 2024): Mistral's layers with a mixture of experts in each."""

from collections.abc import Mapping

from rayinfer.layers.checkpoint_slices import CheckpointSlice, with_checkpoint_names
from rayinfer.layers.norms import RMSNorm
from rayinfer.layers.rotary_embedding import RotaryEmbedding
from rayinfer.models.architectures.expert_layers import mixture_of_experts
from rayinfer.models.architectures.llama_layers import llama_layers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import same_window_everywhere

_CHECKPOINT_NAMES = {
    ".mlp.": ".block_sparse_moe.",
    ".gate_proj.": ".w1.",
    ".down_proj.": ".w2.",
    ".up_proj.": ".w3.",
}


class MixtralForCausalLM(CausalDecoder):
    """Rotary positions, grouped queries, maybe a sliding window, and experts whose weights are made to sum to 1."""

    def __init__(self, config: ModelConfig) -> None:
        rotary = RotaryEmbedding(config.head_dim, config.max_position_embeddings, config.rope)
        layers = llama_layers(
            config,
            rotary,
            windows=same_window_everywhere(config),
            feed_forward=lambda _: mixture_of_experts(config, config.intermediate_size, renormalize=True),
        )
        norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        super().__init__(config, layers, norm, [rotary] * config.num_layers)

    def checkpoint_slices(self) -> Mapping[str, CheckpointSlice]:
        """See Decoder."""
        return with_checkpoint_names(_CHECKPOINT_NAMES, super().checkpoint_slices())

    def known_name(self, tensor_name: str) -> str | None:
        """Checkpoints that hold all experts in one tensor write mlp as other families do."""
        return super().known_name(tensor_name.replace(".mlp.", ".block_sparse_moe."))
