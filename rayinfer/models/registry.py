"""The registry of architectures: a table from a checkpoint's name for its architecture to our class."""

from collections.abc import Callable, Mapping

from rayinfer.models.decoder import Decoder
from rayinfer.models.gemma3 import Gemma3ForCausalLM
from rayinfer.models.gpt2 import GPT2LMHeadModel
from rayinfer.models.gpt_neox import GPTNeoXForCausalLM
from rayinfer.models.known_architectures import check_architecture
from rayinfer.models.llama import LlamaForCausalLM
from rayinfer.models.marian import MarianMTModel
from rayinfer.models.mistral import MistralForCausalLM
from rayinfer.models.mixtral import MixtralForCausalLM
from rayinfer.models.model_config import ModelConfig
from rayinfer.models.phi3 import Phi3ForCausalLM
from rayinfer.models.qwen2 import Qwen2ForCausalLM
from rayinfer.models.qwen3 import Qwen3ForCausalLM
from rayinfer.models.qwen3_moe import Qwen3MoeForCausalLM
from rayinfer.models.t5 import T5ForConditionalGeneration

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
