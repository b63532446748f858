"""Runner of encoders: embeddings, classification of texts and of tokens, and relevance of pairs."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rayinfer.config import EngineConfig, cache_folder
from rayinfer.engine.worker.cores import Cores, cores_of, pinned
from rayinfer.models.encoders.encoder import Encoder, TextBatch
from rayinfer.models.encoders.encoder_config import EncoderConfig, read_encoder_config
from rayinfer.models.encoders.encoder_loading import load_encoder
from rayinfer.models.encoders.product_choice import use_fastest_kernels, use_own_kernels
from rayinfer.models.encoders.sentence_embedding import SentenceEmbedding, load_sentence_embedding
from rayinfer.models.encoders.sentence_layout import SentenceLayout, read_sentence_layout
from rayinfer.models.loader import torch_dtype
from rayinfer.models.prefetch_tuning import tune_prefetch
from rayinfer.predictions import PredictorDescription
from rayinfer.predictors.runner import RunnerItem, RunnerResult
from rayinfer.predictors.runners.activations import classifier_activation, relevance_activation
from rayinfer.predictors.runners.text_batches import check_texts, order_by_length, split_tokens, text_batch
from rayinfer.startup_steps import startup_step


class TextRunner:
    """A loaded encoder and what stands behind it."""

    def __init__(
        self,
        encoder: Encoder,
        embedding: SentenceEmbedding,
        description: PredictorDescription,
        max_input_tokens: int,
        device: torch.device,
        cores: Cores | None = None,
    ) -> None:
        self._encoder, self._embedding, self._device, self._cores = encoder, embedding, device, cores
        self.description = description
        self.max_input_tokens = max_input_tokens
        self.vocab_size = encoder.config.vocab_size

    @property
    def has_stack(self) -> bool:
        """Whether all layers of the encoder run as one operation."""
        return self._encoder.has_stack

    @torch.inference_mode()
    def run(self, batch: Sequence[RunnerItem]) -> list[RunnerResult]:
        """See Runner."""
        check_texts(batch, self.description, self.max_input_tokens, self.vocab_size)
        order = order_by_length(batch)
        results: list[RunnerResult] = [np.empty(0, dtype=np.float32)] * len(batch)
        kinds = [item.task.replace("score", "classify") for item in batch]  # a head's numbers, read in two ways
        # Each kind of tasks by itself: a text's bits do not depend on other items' tasks.
        for kind in dict.fromkeys(kinds):
            places = [index for index in order if kinds[index] == kind]
            with pinned(self._cores):
                found = self._numbers(kind, text_batch([batch[index] for index in places], self._device))
            for index, numbers in zip(places, found, strict=True):
                results[index] = numbers.float().cpu().numpy()
        return results

    def close(self) -> None:
        """See Runner."""
        if self._cores is not None:
            self._cores.release()
        del self._encoder, self._embedding

    def _numbers(self, kind: str, texts: TextBatch) -> list[torch.Tensor]:
        if kind == "embed":
            return list(self._embedding.project(self._encoder.pooled(texts, self._embedding.pooling)))
        if kind == "token_embed":
            return split_tokens(self._encoder.forward(texts), texts.lengths)
        head = self._encoder.head
        assert head is not None, "a model without a head has no such task"
        if head.pooling is None:
            return split_tokens(head.forward(self._encoder.forward(texts)), texts.lengths)
        return list(head.forward(self._encoder.pooled(texts, head.pooling)))


def build_text_runner(
    config: EngineConfig, folder: Path, device: torch.device, load: Callable[[], Encoder] | None = None
) -> TextRunner:
    """Load an encoder's folder, or only what stands behind the encoder that `load` returns.

    Raises ModelLoadError and ConfigError.
    """
    shape = read_encoder_config(folder)
    layout = read_sentence_layout(folder)
    dtype = torch_dtype(config.dtype, shape.dtype)
    with startup_step("reading the checkpoint"):
        load = load or partial(load_encoder, folder, dtype, device, quantization=config.quantization)
        encoder = load()
        embedding = load_sentence_embedding(layout, dtype, device)
    if device.type == "cpu":
        if config.deterministic:
            use_own_kernels(encoder)
            use_own_kernels(embedding)
        else:
            use_fastest_kernels(encoder, dtype, cache_folder() / "products")
    tune_prefetch(encoder, dtype, device, cache_folder() / "products")
    description, max_input_tokens = describe_encoder(shape, layout), longest_text(config, shape, layout)
    return TextRunner(encoder, embedding, description, max_input_tokens, device, cores_of(config, device))


def longest_text(config: EngineConfig, shape: EncoderConfig, layout: SentenceLayout) -> int:
    """Return the tokens of the longest text that positions, files and settings allow."""
    return min(shape.max_length, layout.max_length or shape.max_length, config.max_model_len or shape.max_length)


def describe_encoder(shape: EncoderConfig, layout: SentenceLayout) -> PredictorDescription:
    """Describe an encoder's tasks by its head."""
    head = shape.architecture.head
    if head == "token_classify":
        return PredictorDescription(tasks=("token_classify",), labels=shape.labels, activation="softmax")
    if head == "classify":
        is_scorer = len(shape.labels) == 1
        return PredictorDescription(
            tasks=("score", "classify") if is_scorer else ("classify",),
            labels=shape.labels,
            activation=relevance_activation(shape.raw) if is_scorer else classifier_activation(shape.raw),
        )
    return describe_embeddings(shape.hidden_size, layout)


def describe_embeddings(hidden_size: int, layout: SentenceLayout) -> PredictorDescription:
    """Describe a predictor of embeddings."""
    return PredictorDescription(
        tasks=("embed", "token_embed"),
        embedding_size=layout.dense[-1].out_features if layout.dense else hidden_size,
        normalizes=layout.normalizes,
        pooling=layout.pooling,
        prompts=layout.prompts,
        default_prompt_name=layout.default_prompt_name,
        similarity=layout.similarity,
    )
