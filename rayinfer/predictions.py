"""Predictions: what is computed of an input by a model that does not generate, as it travels between processes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# embed: one vector; classify: one number for each label; score: one number for a pair of texts, its relevance;
# token_embed, token_classify: the same for each token; infer: named tensors to named tensors.
PredictionTask = Literal["embed", "token_embed", "classify", "token_classify", "score", "infer"]
Activation = Literal["none", "softmax", "sigmoid"]  # from a model's numbers to probabilities

PATCH_PIXELS = 16 * 16  # that count as one token; of tensors, their bytes as float32
PATCH_BYTES = 3 * 4 * PATCH_PIXELS


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLimits:
    """Bounds on an image from a client; more than one frame is never accepted."""

    max_bytes: int = 10 * 2**20  # encoded
    max_pixels: int = 25_000_000
    max_side: int = 8192  # pixels


DEFAULT_IMAGE_LIMITS = ImageLimits()


@dataclass(frozen=True, slots=True)
class ImageInput:
    """An encoded image of a prompt, JPEG, PNG or WebP, and the digest by which engines know it again."""

    content: bytes = field(repr=False)
    digest: bytes  # SHA-256 of the content

    @classmethod
    def of(cls, content: bytes) -> "ImageInput":
        """Digest an encoded image."""
        return cls(content, hashlib.sha256(content).digest())


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionInput:
    """One item for a predictor; its text, if it has any, is the prompt of the request, with special tokens."""

    task: PredictionTask
    num_first_tokens: int = 0  # of a pair of texts: tokens of the first one, with the special ones around it
    image: bytes = b""  # an encoded image, JPEG, PNG or WebP
    tensors: bytes = b""  # named tensors, as a safetensors file
    cost: int = 0  # tokens that it counts as, where it has no text

    def num_tokens(self, num_prompt_tokens: int) -> int:
        """Return the tokens that it counts as."""
        return num_prompt_tokens or max(1, self.cost)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionOutput:
    """The numbers that a model has computed of one item, before any normalization or activation.

    embed [embedding_size], classify [num_labels], score [1], token_embed and token_classify [num_tokens, size].
    """

    shape: tuple[int, ...] = ()
    data: bytes = b""  # little-endian float32, row by row; of the task "infer" a safetensors file
    error: str = ""  # why there are none: the input cannot be computed, and would fail everywhere


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """Name, datatype and shape of a model's input or output."""

    name: str
    datatype: str = ""  # the Open Inference Protocol's; "" for any
    shape: tuple[int, ...] | None = None  # -1 for a dimension of any size; None for any shape


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictorDescription:
    """Tasks of a predictor, and how its numbers are read."""

    tasks: tuple[PredictionTask, ...]
    embedding_size: int = 0
    normalizes: bool = False  # embeddings are made unit vectors
    dimensions: tuple[int, ...] = ()  # to which an embedding may be cut (Matryoshka); none: any
    pooling: str = ""  # mean, cls, last, max or weightedmean
    labels: tuple[str, ...] = ()
    activation: Activation = "none"  # of classify, token_classify and score
    prompts: Mapping[str, str] = field(default_factory=dict)  # instructions put before texts, by name
    default_prompt_name: str = ""
    image_size: int = 0  # pixels a side that images are resized to; 0: it takes no images
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] = "cosine"
    inputs: tuple[TensorSpec, ...] = ()  # of the task "infer"; of others they follow from the task
    outputs: tuple[TensorSpec, ...] = ()
    digest: str = ""  # of its weights and of all that its numbers depend on; "": unknown, so nothing is cached

    @property
    def image_cost(self) -> int:
        """Tokens that an image counts as."""
        return max(1, self.image_size**2 // PATCH_PIXELS)

    def cost_of(self, prediction: PredictionInput) -> int:
        """Return the tokens that an item without a text counts as, unless it has a cost of its own."""
        if prediction.image:
            return self.image_cost
        return max(1, len(prediction.tensors) // PATCH_BYTES)
