"""A predictor's whole computation as one torch module of padded tensors, which is what exporters take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers

from rayinfer.errors import ModelLoadError
from rayinfer.models.encoders.encoder_config import read_encoder_config
from rayinfer.models.encoders.pooling import Pooling
from rayinfer.models.encoders.sentence_embedding import load_sentence_embedding
from rayinfer.models.encoders.sentence_layout import read_sentence_layout
from rayinfer.predictors.runners.image_runner import load_classifier

EXAMPLE_ROWS, EXAMPLE_LENGTH = 3, 8  # with one row the number of rows would be fixed to one
MAX_ROWS = 1024
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
EMBEDDING_OUTPUTS = ("sentence_embedding", "token_embeddings")
LOGITS = ("logits",)

_AUTO_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "none": "AutoModel",
        "classify": "AutoModelForSequenceClassification",
        "token_classify": "AutoModelForTokenClassification",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphModule:
    """A module, an example of its inputs, and which of their dimensions may have any size."""

    module: torch.nn.Module
    example: tuple[torch.Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dynamic_shapes: tuple[dict[int, Any], ...]
    ranges: dict[str, list[int]] = field(default_factory=dict)  # of the dimensions, for the manifest


class TextGraph(torch.nn.Module):
    """transformers' model of a text folder, then the pooling; outputs are raw numbers, as runners return them."""

    def __init__(self, model: torch.nn.Module, embed: "PaddedEmbedding | None", takes_types: bool) -> None:
        super().__init__()
        self.model, self.embed, self.takes_types = model, embed, takes_types

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Compute (vectors, hidden states), or (logits,), of padded texts [num_texts, length]."""
        types = {"token_type_ids": token_type_ids} if self.takes_types else {}
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
        if self.embed is None:
            return (result.logits,)
        hidden = result.last_hidden_state
        return self.embed(hidden, attention_mask), hidden


class PaddedEmbedding(torch.nn.Module):
    """Pooling over the tokens that a mask keeps, then dense layers."""

    def __init__(self, pooling: Pooling, dense: torch.nn.ModuleList) -> None:
        super().__init__()
        self.dense = dense
        self._pool = _POOLINGS[pooling]

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Hidden [num_texts, length, width] -> [num_texts, embedding_size]."""
        x = self._pool(hidden, mask)
        for layer in self.dense:
            x = layer(x)
        return x


class ImageGraph(torch.nn.Module):
    """Logits of an image classifier of transformers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Pixels [num_images, 3, height, width] -> ([num_images, num_labels],)."""
        return (self.model(pixel_values=pixel_values).logits,)


def text_graph(folder: Path, max_length: int, dtype: torch.dtype = torch.float32) -> GraphModule:
    """Build the graph of an encoder's folder; raises ModelLoadError for what transformers cannot load."""
    shape, layout = read_encoder_config(folder), read_sentence_layout(folder)
    try:
        loader = getattr(transformers, _AUTO_CLASSES[shape.architecture.head])
        model = loader.from_pretrained(folder, dtype=dtype, local_files_only=True, use_safetensors=True)
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"{folder}: transformers cannot load it for an export: {reason}") from error
    embed = None
    if shape.architecture.head == "none":
        dense = load_sentence_embedding(layout, dtype, torch.device("cpu")).dense
        embed = PaddedEmbedding(layout.pooling, dense)
    inputs = TEXT_INPUTS if shape.has_pair_types else TEXT_INPUTS[:2]
    rows, length = torch.export.Dim("batch", min=1, max=MAX_ROWS), torch.export.Dim("length", min=1, max=max_length)
    ids = torch.full((EXAMPLE_ROWS, min(EXAMPLE_LENGTH, max_length)), shape.vocab_size - 1)
    example = (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(inputs)]
    return GraphModule(
        module=TextGraph(model, embed, shape.has_pair_types).eval(),
        example=example,
        inputs=inputs,
        outputs=LOGITS if embed is None else EMBEDDING_OUTPUTS,
        dynamic_shapes=({0: rows, 1: length},) * len(inputs),
        ranges={"batch": [1, MAX_ROWS], "length": [1, max_length]},
    )


def image_graph(folder: Path, input_size: tuple[int, int], dtype: torch.dtype = torch.float32) -> GraphModule:
    """Build the graph of an image classifier's folder."""
    return GraphModule(
        module=ImageGraph(load_classifier(folder, dtype)).eval(),
        example=(torch.zeros(EXAMPLE_ROWS, 3, *input_size, dtype=dtype),),
        inputs=("pixel_values",),
        outputs=LOGITS,
        dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=MAX_ROWS)},),
        ranges={"batch": [1, MAX_ROWS]},
    )


def tensor_graph(
    module: torch.nn.Module, example: Mapping[str, torch.Tensor], free: Mapping[str, Sequence[int]],
    outputs: Sequence[str],
) -> GraphModule:  # fmt: skip
    """Build the graph of a registered module of the named tensors in `example`; `free` are dimensions of any size."""
    return GraphModule(
        module=_Named(module, tuple(example), tuple(outputs)).eval(),
        example=tuple(example.values()),
        inputs=tuple(example),
        outputs=tuple(outputs),
        dynamic_shapes=tuple(dict.fromkeys(free[name], torch.export.Dim.DYNAMIC) for name in example),
        ranges={f"{name}[{index}]": [2, -1] for name in example for index in free[name]},
    )


class _Named(torch.nn.Module):
    """A registered module with its inputs in order, and its outputs as a tuple."""

    def __init__(self, module: torch.nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.inputs, self.outputs = module, inputs, outputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.module(**dict(zip(self.inputs, tensors, strict=True)))
        if isinstance(result, Mapping):
            return tuple(torch.as_tensor(result[name]) for name in self.outputs)
        return tuple(result) if isinstance(result, tuple | list) else (result,)


def _mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = mask[..., None].to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1)


def _max(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden.masked_fill(mask[..., None] == 0, torch.finfo(hidden.dtype).min).amax(1)


def _cls(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden[:, 0]


def _last(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    ends = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, ends)[:, 0]


def _weighted_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = (mask.cumsum(1) * mask)[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


_POOLINGS: Mapping[Pooling, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"mean": _mean, "max": _max, "cls": _cls, "last": _last, "weightedmean": _weighted_mean}
)
