"""Which architectures there are: the one table from a checkpoint's own word to our class."""

from collections.abc import Callable, Mapping

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.decoder import Decoder
from rayinfer.models.llama import LlamaForCausalLM
from rayinfer.models.model_config import ModelConfig

ARCHITECTURES: Mapping[str, Callable[[ModelConfig], Decoder]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
}


def check_architecture(config: ModelConfig) -> None:
    """Raise UnsupportedArchitecture, listing the known ones, when there is no class for the checkpoint."""
    if config.architecture not in ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"architecture {config.architecture!r} is not supported; known: {', '.join(sorted(ARCHITECTURES))}"
            " (rayinfer/models/README.md says how to add one)"
        )


def build_decoder(config: ModelConfig) -> Decoder:
    """Build the architecture's class, its weights not yet filled."""
    check_architecture(config)
    return ARCHITECTURES[config.architecture](config)
