"""rayinfer: an inference service on Ray. Importing it loads no torch; using `rayinfer.LLM` does."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayinfer.beam_search.search import BeamSearchParams as BeamSearchParams
    from rayinfer.client import AsyncInferenceClient as AsyncInferenceClient
    from rayinfer.client import InferenceClient as InferenceClient
    from rayinfer.config import Config as Config
    from rayinfer.grammars.spec import StructuredOutputsParams as StructuredOutputsParams
    from rayinfer.llm import LLM as LLM
    from rayinfer.llm.adapter_requests import LoRARequest as LoRARequest
    from rayinfer.outputs import CompletionOutput as CompletionOutput
    from rayinfer.outputs import RequestOutput as RequestOutput
    from rayinfer.predictors.predictor import Predictor as Predictor
    from rayinfer.predictors.registered import register_predictor as register_predictor
    from rayinfer.sampling_params import SamplingParams as SamplingParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncInferenceClient",
    "BeamSearchParams",
    "CompletionOutput",
    "Config",
    "InferenceClient",
    "LoRARequest",
    "Predictor",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "register_predictor",
]

_LAZY_EXPORTS = {
    "AsyncInferenceClient": "rayinfer.client",
    "BeamSearchParams": "rayinfer.beam_search.search",
    "InferenceClient": "rayinfer.client",
    "LLM": "rayinfer.llm",
    "LoRARequest": "rayinfer.llm.adapter_requests",
    "CompletionOutput": "rayinfer.outputs",
    "Config": "rayinfer.config",
    "Predictor": "rayinfer.predictors.predictor",
    "RequestOutput": "rayinfer.outputs",
    "SamplingParams": "rayinfer.sampling_params",
    "StructuredOutputsParams": "rayinfer.grammars.spec",
    "register_predictor": "rayinfer.predictors.registered",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"module 'rayinfer' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY_EXPORTS[name]), name)
