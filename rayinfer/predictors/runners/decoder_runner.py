"""Runner of decoders that are embedded with, as Qwen3-Embedding, over a KV cache of one batch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.config import EngineConfig, cache_folder, packed_cache_bytes
from rayinfer.engine.worker.cores import Cores, cores_of, pinned
from rayinfer.errors import ModelLoadError
from rayinfer.models.decoder import Decoder
from rayinfer.models.encoders.sentence_embedding import SentenceEmbedding, load_sentence_embedding
from rayinfer.models.encoders.sentence_layout import read_sentence_layout
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import read_model_config
from rayinfer.models.prefetch_tuning import tune_prefetch
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_weights import load_packed_decoder
from rayinfer.predictions import PredictorDescription
from rayinfer.predictors.runner import RunnerItem, RunnerResult
from rayinfer.predictors.runners.text_batches import check_texts, order_by_length, split_tokens, text_batch
from rayinfer.predictors.runners.text_runner import describe_embeddings
from rayinfer_kernels import ops

BLOCK_SIZE = 16


class DecoderRunner:
    """A loaded decoder; a text's keys and values are kept for one batch only."""

    def __init__(
        self,
        decoder: Decoder,
        embedding: SentenceEmbedding,
        description: PredictorDescription,
        max_input_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        cores: Cores | None = None,
    ) -> None:
        self._decoder, self._embedding = decoder, embedding
        self._dtype, self._device, self._cores = dtype, device, cores
        self._num_blocks = 0  # of the scratch cache
        self.description = description
        self.max_input_tokens = max_input_tokens
        self.vocab_size = decoder.config.vocab_size

    @torch.inference_mode()
    def run(self, batch: Sequence[RunnerItem]) -> list[RunnerResult]:
        """See Runner."""
        check_texts(batch, self.description, self.max_input_tokens, self.vocab_size)
        if not batch:
            return []
        order = order_by_length(batch)
        items = [batch[index] for index in order]
        texts = text_batch(items, self._device)
        attention_batch, lengths = self._attention_batch(texts.positions, texts.lengths), texts.lengths
        if self._embedding.pooling == "last" and all(item.task == "embed" for item in items):
            outputs = ops.OutputTokens.last_of_each(attention_batch.cu_seqlens_q)
            attention_batch, lengths = replace(attention_batch, outputs=outputs), [1] * len(items)
        with pinned(self._cores):
            hidden = self._decoder.forward(texts.token_ids, attention_batch)
            vectors = list(self._embedding.forward(hidden, lengths))
        tokens = split_tokens(hidden, lengths)
        results: list[RunnerResult] = [np.empty(0, dtype=np.float32)] * len(batch)
        for place, index in enumerate(order):
            numbers = vectors[place] if items[place].task == "embed" else tokens[place]
            results[index] = numbers.float().cpu().numpy()
        return results

    def close(self) -> None:
        """See Runner."""
        if self._cores is not None:
            self._cores.release()
        del self._decoder, self._embedding

    def _attention_batch(self, positions: torch.Tensor, lengths: Sequence[int]) -> AttentionBatch:
        """Give each text blocks of its own."""
        counts = torch.tensor(lengths)
        num_blocks = (counts + BLOCK_SIZE - 1) // BLOCK_SIZE
        first_blocks = num_blocks.cumsum(0) - num_blocks
        self._reserve(int(num_blocks.sum()))
        tables = first_blocks[:, None] + torch.arange(int(num_blocks.max()))
        tables = torch.where(torch.arange(tables.shape[1]) < num_blocks[:, None], tables, 0)
        starts = (first_blocks * BLOCK_SIZE).repeat_interleave(counts).to(self._device)
        ends = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        return AttentionBatch(
            positions=positions,
            slot_mapping=starts + positions,
            cu_seqlens_q=ends.to(self._device, torch.int32),
            seq_lens=counts.to(self._device, torch.int32),
            block_tables=tables.to(self._device, torch.int32),
        )

    def _reserve(self, num_blocks: int) -> None:
        if num_blocks <= self._num_blocks:
            return
        self._num_blocks = max(num_blocks, 2 * self._num_blocks)
        decoder = self._decoder
        shape = (self._num_blocks, BLOCK_SIZE, decoder.num_kv_heads_here, decoder.config.head_dim)
        caches = [ops.allocate_kv_cache(*shape, self._dtype, self._device) for _ in range(decoder.num_layers_here)]
        decoder.bind_kv_caches(caches)


def build_decoder_runner(config: EngineConfig, folder: Path, device: torch.device) -> DecoderRunner:
    """Load a decoder's folder; raises ModelLoadError and ConfigError."""
    model, layout = read_model_config(folder), read_sentence_layout(folder)
    if model.seq2seq is not None:
        raise ModelLoadError(f"{folder}: embeddings of an encoder-decoder are not supported")
    for field, unsupported in (("is_causal", False), ("use_bidirectional_attention", True)):
        if model.raw.get(field) is unsupported:
            raise ModelLoadError(
                f"{folder / 'config.json'}: {field} {unsupported} is not supported: decoders are causal"
            )
    dtype = torch_dtype(config.dtype, model.dtype)
    cache = PackedCache(cache_folder() / "packed", max_bytes=packed_cache_bytes())
    decoder = load_packed_decoder(folder, dtype, device, quantization=config.quantization, cache=cache)
    limits = (model.longest_sequence, layout.max_length, config.max_model_len)
    max_length = min(limit for limit in limits if limit is not None)
    decoder.prepare(dtype, device, max_length, model.longest_sequence)
    tune_prefetch(decoder, dtype, device, cache_folder() / "products")
    embedding = load_sentence_embedding(layout, dtype, device)
    description = describe_embeddings(model.hidden_size, layout)
    return DecoderRunner(decoder, embedding, description, max_length, dtype, device, cores_of(config, device))
