"""Runs a decoder over a small paged cache without an engine, for comparison with transformers."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from rayinfer.attention.batch import AttentionBatch
from rayinfer.kv_cache.cache_tensors import allocate_kv_caches
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import load_decoder

CPU = torch.device("cpu")
NUM_BLOCKS, BLOCK_SIZE = 24, 8


class DecoderRun:
    """Holds a decoder with its cache; every sequence gets blocks that lie scattered in the pool."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.decoder: Decoder = load_decoder(folder, dtype, CPU)
        config = self.decoder.config
        self.decoder.prepare(dtype, CPU, config.max_position_embeddings)
        caches = allocate_kv_caches(
            config.num_layers, NUM_BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim, dtype, CPU
        )
        self.decoder.bind_kv_caches(caches)
        self._free = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1)).tolist()
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    @torch.inference_mode()
    def feed(self, *parts: tuple[int, list[int]]) -> list[torch.Tensor]:
        """Compute the next tokens of some sequences in one batch; returns the logits of all of them, by sequence."""
        positions, slots, starts, tables, token_ids = [], [], [0], [], []
        for sequence, tokens in parts:
            start = self._lengths.get(sequence, 0)
            end = self._lengths[sequence] = start + len(tokens)
            table = self._tables.setdefault(sequence, [])
            while len(table) * BLOCK_SIZE < end:
                table.append(self._free.pop())
            positions += range(start, end)
            slots += [table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(start, end)]
            starts.append(starts[-1] + len(tokens))
            tables.append(table)
            token_ids += tokens
        width = max(map(len, tables))
        batch = AttentionBatch(
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lengths=torch.tensor([self._lengths[sequence] for sequence, _ in parts], dtype=torch.int32),
            block_tables=torch.tensor([table + [0] * (width - len(table)) for table in tables], dtype=torch.int32),
        )
        logits = self.decoder.logits(self.decoder.forward(torch.tensor(token_ids, dtype=torch.int32), batch))
        return list(logits.split([len(tokens) for _, tokens in parts]))


@torch.inference_mode()
def transformers_logits(folder: Path, token_ids: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The logits that transformers computes for every position, [num_tokens, vocab_size]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    return model(torch.tensor([token_ids])).logits[0]
