"""Idefics3 and SmolVLM (Laurençon et al. 2024, Marafioti et al. 2025), the language model: a Llama.

Embeddings of images take the places of a marker's; `rayinfer.models.vision` computes them.
"""

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.architectures.llama import LlamaForCausalLM
from rayinfer.models.model_config import ModelConfig

_TEXT_PREFIX = "model.text_model."
_IMAGE_PARTS = ("model.vision_model.", "model.connector.")


class Idefics3ForConditionalGeneration(LlamaForCausalLM):
    """The text half of the checkpoint; its tensors for images are read elsewhere."""

    def __init__(self, config: ModelConfig) -> None:
        kind = config.raw.get("model_type", "llama")
        if kind != "llama":
            raise UnsupportedArchitecture(f"text_config of model_type {kind!r} is not supported, only llama")
        super().__init__(config)

    def known_name(self, tensor_name: str) -> str | None:
        """Rename the tensors of the text half as Llama's; None for those of the vision half."""
        if tensor_name.startswith(_IMAGE_PARTS):
            return None
        if tensor_name.startswith(_TEXT_PREFIX):
            tensor_name = "model." + tensor_name.removeprefix(_TEXT_PREFIX)
        return super().known_name(tensor_name)
