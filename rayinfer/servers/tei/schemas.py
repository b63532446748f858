"""TEI's request bodies: types only; ranges are checked where each value is used."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from rayinfer.errors import InvalidParameter
from rayinfer.servers.openai.schemas import Integer, Texts
from rayinfer.servers.openapi import ranged
from rayinfer.servers.pooling.schemas import Inputs
from rayinfer.servers.prediction.text_items import TextSettings

_TEXT = {"type": "string", "minLength": 1}
_PAIR = {"type": "array", "minItems": 1, "maxItems": 2, "items": _TEXT}
_TOKEN_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class TruncationBody(_Strict):
    """Fields of bodies with texts; null means the default everywhere."""

    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None

    def text_settings(self, prompt: str = "") -> TextSettings:
        """Return how texts become token ids."""
        is_left = self.truncation_direction in ("left", "Left")
        return TextSettings(
            truncate_to=-1 if self.truncate else None, truncation_side="left" if is_left else "right", prompt=prompt
        )


class EmbedBody(TruncationBody):
    """POST /embed, /embed_all and, for embedding models, /."""

    inputs: Inputs
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: Annotated[Integer | None, ranged("integer", minimum=1)] = None


class TeiRerankBody(TruncationBody):
    """POST /rerank with `texts`."""

    query: Annotated[str, WithJsonSchema(_TEXT)]
    texts: Annotated[Texts, WithJsonSchema({"type": "array", "minItems": 1, "items": {"type": "string"}})]
    raw_scores: bool | None = None
    return_text: bool | None = None


class PipelineParameters(_Strict):
    """Parameters of the Hub's pipelines, at the root."""

    function_to_apply: Literal["none", "softmax", "sigmoid"] | None = None
    top_k: Annotated[Integer | None, ranged("integer", minimum=1)] = None
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    ignore_labels: Annotated[Any, WithJsonSchema({"type": ["array", "null"], "items": {"type": "string"}})] = None


class PredictBody(TruncationBody):
    """POST /predict and, for classifiers, /."""

    inputs: Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, _PAIR, {"type": "array", "minItems": 1, "items": _PAIR}]})]
    raw_scores: bool | None = None
    parameters: PipelineParameters | None = None


class SimilarityInputs(_Strict):
    """A sentence and those it is compared with."""

    source_sentence: Annotated[str, WithJsonSchema(_TEXT)]
    sentences: Annotated[Texts, WithJsonSchema({"type": "array", "minItems": 1, "items": _TEXT})]


class SimilarityParameters(TruncationBody):
    """TEI's parameters of a similarity."""

    prompt_name: str | None = None


class SimilarityBody(_Strict):
    """POST /similarity."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class TeiTokenizeBody(_Strict):
    """POST /tokenize of a model that does not generate."""

    inputs: Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _TEXT}]})]
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class DecodeBody(_Strict):
    """POST /decode."""

    ids: Annotated[Any, WithJsonSchema({"anyOf": [_TOKEN_IDS, {"type": "array", "minItems": 1, "items": _TOKEN_IDS}]})]
    skip_special_tokens: bool | None = None


class PredictInputs:
    """Texts and pairs of a prediction, and whether they are answered as a list.

    A text, or a list of one or two texts, which is a text or a pair, is one input; a list of such lists is several.
    """

    __slots__ = ("is_batch", "sequences")

    def __init__(self, value: Any) -> None:
        if isinstance(value, str):
            value = [value]
        self.is_batch = isinstance(value, list) and bool(value) and isinstance(value[0], list)
        self.sequences: list[list[str]] = value if self.is_batch else [value]
        for sequence in self.sequences:
            is_list = isinstance(sequence, list) and 1 <= len(sequence) <= 2
            if not is_list or any(not isinstance(text, str) or not text for text in sequence):
                raise InvalidParameter(
                    "inputs must be a text, a pair of texts [text, text] or a batch of both [[text], [text, text]], "
                    "none of them empty",
                    "inputs",
                )
