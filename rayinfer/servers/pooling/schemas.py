"""The request bodies: types only; ranges are checked where each value is used."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from rayinfer.errors import InvalidParameter
from rayinfer.servers.openai.schemas import MAX_PRIORITY, SALT_SCHEMA, Integer, check_cache_salt, check_priority
from rayinfer.servers.openapi import ranged
from rayinfer.servers.pooling.number_types import EmbedDtype, Endianness, NumberType
from rayinfer.servers.prediction.text_items import TextSettings
from rayinfer.tokenization.truncation import TruncationSide

_TEXT = {"type": "string", "minLength": 1}
_TOKEN_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXTS = {"type": "array", "minItems": 1, "items": _TEXT}
_TEXT_OR_TEXTS = {"anyOf": [_TEXT, _TEXTS]}
_DOCUMENT = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}},
    ]
}

Inputs = Annotated[
    Any,
    WithJsonSchema({"anyOf": [_TEXT, _TEXTS, _TOKEN_IDS, {"type": "array", "minItems": 1, "items": _TOKEN_IDS}]}),
]
TextOrTexts = Annotated[Any, WithJsonSchema(_TEXT_OR_TEXTS)]
Documents = Annotated[Any, WithJsonSchema({"type": "array", "minItems": 1, "items": _DOCUMENT})]


class PoolingSettings(BaseModel):
    """Fields of every body; null means the default everywhere."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str | None = None
    user: str | None = None  # has no effect
    truncate_prompt_tokens: Annotated[Integer | None, ranged("integer", minimum=-1)] = None
    truncation_side: TruncationSide | None = None  # right is the default
    priority: Annotated[Integer | None, ranged("integer", minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)] = None
    cache_salt: Annotated[str | None, WithJsonSchema({"anyOf": [SALT_SCHEMA, {"type": "null"}]})] = None
    request_id: str | None = None
    use_activation: bool | None = None  # False: numbers as the model computes them

    def check_ranges(self) -> None:
        """Check what every request has; raises InvalidParameter."""
        check_priority(self.priority)
        check_cache_salt(self.cache_salt)

    def text_settings(self, prompt: str = "", *, add_special_tokens: bool | None = None) -> TextSettings:
        """Return how texts become token ids."""
        return TextSettings(
            truncate_to=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side or "right",
            add_special_tokens=add_special_tokens is not False,
            prompt=prompt,
        )


class InputBody(PoolingSettings):
    """Fields of bodies with texts or token ids."""

    input: Inputs
    add_special_tokens: bool | None = None


class VectorsBody(InputBody):
    """Fields of bodies that are answered with numbers in one of several forms."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    embed_dtype: EmbedDtype | None = None  # of base64 and bytes, as endianness
    endianness: Endianness | None = None
    dimensions: Annotated[Integer | None, ranged("integer", minimum=1)] = None
    prompt_name: str | None = None
    normalize: bool | None = None

    @property
    def number_type(self) -> NumberType:
        """The type of numbers as bytes; OpenAI's clients read little-endian float32."""
        return NumberType(self.embed_dtype or "float32", self.endianness or "little")


class EmbeddingsBody(VectorsBody):
    """POST /v1/embeddings."""


class ClassifyBody(InputBody):
    """POST /classify."""


class PoolingBody(VectorsBody):
    """POST /pooling."""

    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None


class CohereEmbedBody(BaseModel):
    """POST /v2/embed, as Cohere has it."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str | None = None
    texts: TextOrTexts = None
    images: Any = None  # refused: embedders here read texts
    inputs: Any = None  # of texts and images together
    input_type: Literal["search_document", "search_query", "classification", "clustering", "image"] | None = None
    embedding_types: list[Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]] | None = None
    output_dimension: Annotated[Integer | None, ranged("integer", minimum=1)] = None
    max_tokens: Annotated[Integer | None, ranged("integer", minimum=1)] = None
    truncate: Literal["NONE", "START", "END"] | None = None  # END is Cohere's default
    priority: Annotated[Integer | None, ranged("integer", minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)] = None


class ScoreBody(PoolingSettings):
    """POST /score; the texts of both sides have two names."""

    text_1: TextOrTexts = None
    text_2: TextOrTexts = None
    queries: TextOrTexts = None
    documents: TextOrTexts = None


class RerankBody(PoolingSettings):
    """POST /rerank."""

    query: Annotated[str, Field(min_length=1)]
    documents: Documents
    top_n: Annotated[Integer | None, ranged("integer", minimum=1)] = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[Integer | None, ranged("integer", minimum=1)] = None

    def check_ranges(self) -> None:
        """Check the numbers as well; raises InvalidParameter."""
        super().check_ranges()
        for name in ("top_n", "max_tokens_per_doc"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidParameter(f"{name} must be a whole number above 0, got {value}", name)
