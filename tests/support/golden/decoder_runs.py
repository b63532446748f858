"""Runs of a decoder over a small paged cache without an engine, for comparison with transformers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.kv_cache.cache_tensors import allocate_kv_caches
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import load_decoder
from rayinfer.optimization.sequence_batches import SequenceBatches

CPU = torch.device("cpu")
NUM_BLOCKS, BLOCK_SIZE = 48, 8
PROMPT = [(7 * i * i + 3 * i + 11) % 96 for i in range(60)]
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@dataclass(frozen=True)
class GreedyTokens:
    """Tokens and, for each, the logits of what comes after it."""

    token_ids: list[int]
    logits: torch.Tensor  # [num_tokens, vocab_size]


class DecoderRun:
    """A decoder with its cache; every sequence gets blocks that lie scattered in the pool."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        *,
        longest_sequence: int | None = None,
        load: Callable[[Path, torch.dtype], Decoder] | None = None,
    ) -> None:
        self.decoder = load_decoder(folder, dtype, CPU) if load is None else load(folder, dtype)
        config, num_kv_heads = self.decoder.config, self.decoder.num_kv_heads_here
        self.decoder.prepare(dtype, CPU, NUM_BLOCKS * BLOCK_SIZE, longest_sequence or config.max_position_embeddings)
        caches = allocate_kv_caches(
            self.decoder.num_layers_here, NUM_BLOCKS, BLOCK_SIZE, num_kv_heads, config.head_dim, dtype, CPU
        )
        self.decoder.bind_kv_caches(caches)
        self._free = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1)).tolist()
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    @torch.inference_mode()
    def feed(self, *parts: tuple[int, list[int]], hidden: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Compute the next tokens of some sequences in one batch; returns the logits of all of them, by sequence.

        `hidden` takes the place of the tokens' embeddings, [num_tokens, hidden_size].
        """
        positions, slot_mapping, starts, tables, token_ids = [], [], [0], [], []
        for sequence, tokens in parts:
            start = self._lengths.get(sequence, 0)
            end = self._lengths[sequence] = start + len(tokens)
            table = self._tables.setdefault(sequence, [])
            while len(table) * BLOCK_SIZE < end:
                table.append(self._free.pop())
            positions += range(start, end)
            slot_mapping += [table[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(start, end)]
            starts.append(starts[-1] + len(tokens))
            tables.append(table)
            token_ids += tokens
        width = max(map(len, tables))
        batch = AttentionBatch(
            positions=torch.tensor(positions),
            slot_mapping=torch.tensor(slot_mapping),
            cu_seqlens_q=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor([self._lengths[sequence] for sequence, _ in parts], dtype=torch.int32),
            block_tables=torch.tensor([table + [0] * (width - len(table)) for table in tables], dtype=torch.int32),
            rows=torch.tensor([sequence for sequence, _ in parts]),
        )
        logits = self.decoder.logits(self.decoder.forward(torch.tensor(token_ids, dtype=torch.int32), batch, hidden))
        return list(logits.split([len(tokens) for _, tokens in parts]))

    def decode_greedily(self, sequence: int, first: int, count: int) -> GreedyTokens:
        """Feed `first`, then the likeliest token after it, and so on: `count` tokens in all."""
        token_ids, logits = [first], []
        for _ in range(count):
            logits.append(self.feed((sequence, token_ids[-1:]))[0])
            token_ids.append(int(logits[-1].argmax()))
        return GreedyTokens(token_ids[:-1], torch.cat(logits))


def num_decoded_of(variation: str, variations: Mapping[str, Any]) -> int:
    """How many tokens are decoded: 64 for the first of an architecture's variations, some for each of the others."""
    return 64 if variation == next(iter(variations)) else 8


def assert_decodes_like_transformers(folder: Path, *, prompt: list[int] = PROMPT, num_decoded: int = 64) -> None:
    """Compare logits in prefill, chunked prefill and decoding within 1e-4, and the tokens of greedy decoding.

    `prompt` should outgrow the model's window, and its ids must lie in the vocabulary.
    """
    run = DecoderRun(folder)
    (prefill,) = run.feed((0, prompt))
    greedy = run.decode_greedily(0, int(prefill[-1].argmax()), num_decoded)
    # Their logits for prompt and our tokens: theirs are the same tokens if each of ours is their likeliest, too.
    theirs = transformers_logits(folder, prompt + greedy.token_ids)
    torch.testing.assert_close(torch.cat((prefill, greedy.logits)), theirs, **CLOSE)
    assert theirs[len(prompt) - 1 : -1].argmax(-1).tolist() == greedy.token_ids

    pieces = [prompt[start : start + 13] for start in range(0, len(prompt), 13)]
    chunks = [run.feed((1, piece), (2, piece[-1:]))[0] for piece in pieces]  # beside another sequence
    torch.testing.assert_close(torch.cat(chunks), theirs[: len(prompt)], **CLOSE)


@torch.inference_mode()
def transformers_logits(folder: Path, token_ids: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The logits that transformers computes for every position, [num_tokens, vocab_size]."""
    # Eager experts, because the grouped ones refuse odd widths.
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **plain).eval()
    return model(torch.tensor([token_ids])).logits[0]


@torch.inference_mode()
def logits_of(decoder: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logits in float32 of four sequences of 64 random tokens below 384."""
    length = 64
    decoder.prepare(dtype, CPU, length)
    token_ids = torch.randint(384, (4, length), generator=torch.Generator().manual_seed(5), dtype=torch.int32)
    batch = SequenceBatches(decoder, dtype, 4, length).step(0, length)
    logits: torch.Tensor = decoder.logits(decoder.forward(token_ids.flatten(), batch))
    return logits.float()
