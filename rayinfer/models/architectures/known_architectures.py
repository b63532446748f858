"""The names of all architectures, known without loading torch; `registry.py` has their classes."""

from rayinfer.errors import UnsupportedArchitecture

KNOWN_ARCHITECTURES = (
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "LlamaForCausalLM",
    "MarianMTModel",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "T5ForConditionalGeneration",
)


def check_architecture(name: str) -> None:
    """Raise UnsupportedArchitecture, listing the known ones, when there is no class for the checkpoint."""
    if name not in KNOWN_ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"architecture {name!r} is not supported; known: {', '.join(KNOWN_ARCHITECTURES)}"
            " (rayinfer/models/README.md says how to add one)"
        )
