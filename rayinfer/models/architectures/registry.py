"""Registry of architectures: a checkpoint's name for its architecture to the module and class; loads no torch.

Other packages add theirs as entry points of the group `rayinfer.models`.
"""

import importlib
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from rayinfer.entry_points import MODELS, call_entry_point, entry_point_names, refuse_taken_names
from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.encoders.registry import encoder_architecture

# In rayinfer/models/architectures, so that names are checked without loading torch.
ARCHITECTURES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "GPT2LMHeadModel": ("gpt2", "GPT2LMHeadModel"),
        "GPTNeoXForCausalLM": ("gpt_neox", "GPTNeoXForCausalLM"),
        "GptOssForCausalLM": ("gpt_oss", "GptOssForCausalLM"),
        "Gemma3ForCausalLM": ("gemma3", "Gemma3ForCausalLM"),
        "Gemma3ForConditionalGeneration": ("gemma3", "Gemma3ForCausalLM"),  # answers to text alone
        "Idefics3ForConditionalGeneration": ("idefics3", "Idefics3ForConditionalGeneration"),
        "GraniteForCausalLM": ("granite", "GraniteForCausalLM"),
        "GraniteMoeHybridForCausalLM": ("granite", "GraniteMoeHybridForCausalLM"),
        "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
        "MarianMTModel": ("marian", "MarianMTModel"),
        "Ministral3ForCausalLM": ("mistral", "Ministral3ForCausalLM"),
        "Mistral3ForConditionalGeneration": ("mistral", "Ministral3ForCausalLM"),  # answers to text alone
        "MistralForCausalLM": ("mistral", "MistralForCausalLM"),
        "MixtralForCausalLM": ("mixtral", "MixtralForCausalLM"),
        "Olmo2ForCausalLM": ("olmo", "Olmo2ForCausalLM"),
        "Olmo3ForCausalLM": ("olmo", "Olmo3ForCausalLM"),
        "Phi3ForCausalLM": ("phi3", "Phi3ForCausalLM"),
        "Qwen2ForCausalLM": ("qwen2", "Qwen2ForCausalLM"),
        "Qwen2VLForConditionalGeneration": ("qwen2", "Qwen2VLForConditionalGeneration"),
        "Qwen2_5_VLForConditionalGeneration": ("qwen2", "Qwen2VLForConditionalGeneration"),
        "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),
        "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeForCausalLM"),
        "SmolLM3ForCausalLM": ("smollm3", "SmolLM3ForCausalLM"),
        "SmolVLMForConditionalGeneration": ("idefics3", "Idefics3ForConditionalGeneration"),
        "T5ForConditionalGeneration": ("t5", "T5ForConditionalGeneration"),
        "LlamaModel": ("llama", "LlamaForCausalLM"),
        "MistralModel": ("mistral", "MistralForCausalLM"),
        "Qwen2Model": ("qwen2", "Qwen2ForCausalLM"),
        "Qwen3Model": ("qwen3", "Qwen3ForCausalLM"),
    }
)
# Of checkpoints without an output head, which are embedded with.
HEADLESS = frozenset({"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"})


def check_architecture(name: str) -> None:
    """Raise UnsupportedArchitecture, listing the known ones, when there is no class for the checkpoint."""
    if name in ARCHITECTURES:
        return
    if encoder_architecture(name) is not None or name.endswith("ForImageClassification"):
        raise UnsupportedArchitecture(f"architecture {name!r} does not generate text: use Predictor")
    others = entry_point_names(MODELS)
    if name not in others:
        known = ", ".join([*ARCHITECTURES, *(other for other in others if other not in ARCHITECTURES)])
        raise UnsupportedArchitecture(
            f"architecture {name!r} is not supported; known: {known}"
            " (rayinfer/models/README.md explains how to add one)"
        )


def architecture_class(name: str) -> Any:
    """Import the architecture's class, which builds a Decoder from a ModelConfig; raises UnsupportedArchitecture.

    Of another package's class, errors while it is imported and built are ModelLoadErrors.
    """
    check_architecture(name)
    refuse_taken_names(MODELS, ARCHITECTURES)
    if name not in ARCHITECTURES:
        return partial(call_entry_point, MODELS, name)
    module, class_name = ARCHITECTURES[name]
    return getattr(importlib.import_module(f"rayinfer.models.architectures.{module}"), class_name)
