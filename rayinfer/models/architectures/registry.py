"""The registry of architectures: a table from a checkpoint's name for its architecture to our class."""

from collections.abc import Callable, Mapping

from rayinfer.models.architectures.gemma3 import Gemma3ForCausalLM
from rayinfer.models.architectures.gpt2 import GPT2LMHeadModel
from rayinfer.models.architectures.gpt_neox import GPTNeoXForCausalLM
from rayinfer.models.architectures.known_architectures import check_architecture
from rayinfer.models.architectures.llama import LlamaForCausalLM
from rayinfer.models.architectures.marian import MarianMTModel
from rayinfer.models.architectures.mistral import MistralForCausalLM
from rayinfer.models.architectures.mixtral import MixtralForCausalLM
from rayinfer.models.architectures.phi3 import Phi3ForCausalLM
from rayinfer.models.architectures.qwen2 import Qwen2ForCausalLM
from rayinfer.models.architectures.qwen3 import Qwen3ForCausalLM
from rayinfer.models.architectures.qwen3_moe import Qwen3MoeForCausalLM
from rayinfer.models.architectures.t5 import T5ForConditionalGeneration
from rayinfer.models.decoder import Decoder
from rayinfer.models.model_config import ModelConfig

ARCHITECTURES: Mapping[str, Callable[[ModelConfig], Decoder]] = {
    "GPT2LMHeadModel": GPT2LMHeadModel,
    "GPTNeoXForCausalLM": GPTNeoXForCausalLM,
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "Gemma3ForConditionalGeneration": Gemma3ForCausalLM,  # answers to text alone
    "LlamaForCausalLM": LlamaForCausalLM,
    "MarianMTModel": MarianMTModel,
    "MistralForCausalLM": MistralForCausalLM,
    "MixtralForCausalLM": MixtralForCausalLM,
    "Phi3ForCausalLM": Phi3ForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
    "Qwen3MoeForCausalLM": Qwen3MoeForCausalLM,
    "T5ForConditionalGeneration": T5ForConditionalGeneration,
}


def build_decoder(config: ModelConfig) -> Decoder:
    """Build the architecture's class, its weights not yet filled; raises UnsupportedArchitecture."""
    check_architecture(config.architecture)
    return ARCHITECTURES[config.architecture](config)
