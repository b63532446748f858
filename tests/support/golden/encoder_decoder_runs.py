"""Tiny encoder-decoders, and runs of them without an engine, for comparison with transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, MarianConfig, PreTrainedConfig, T5Config

from rayinfer.models.decoder import Decoder
from support.golden.decoder_runs import CPU, DecoderRun

NUM_ROWS, MAX_SOURCE_TOKENS = 4, 90
PAD, END = 95, 1
# By a part of a parameter's name: so an answer depends on what was read and written, and does not repeat itself soon.
_WIDTHS = {
    "t5": {"norm": 0.2, "lm_head": 0.1, "": 0.25},
    "marian": {"norm": 0.2, "fc": 0.4, "q_proj": 0.4, "k_proj": 0.4, "": 0.1},
}


def make_tiny_t5(
    folder: Path, *, owns_head: bool = False, query_width: float = _WIDTHS["t5"][""], **settings: Any
) -> Path:
    """Save a random T5 with distances that fill several buckets; with `owns_head` as version 1.1 has it.

    Nothing scales T5's scores but its weights: trained ones make small queries, wider ones let rounding grow.
    """
    shape = {
        **{"vocab_size": 96, "d_model": 64, "d_kv": 16, "d_ff": 100, "num_layers": 2, "num_heads": 4},
        **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
        **{"pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 0, "tie_word_embeddings": not owns_head},
    }
    widths = {".q.": query_width} | _WIDTHS["t5"]
    return _save(folder, T5Config(**(shape | settings)), widths, owns_head=owns_head)


def make_tiny_marian(folder: Path, *, pad: int = PAD, end: int = END, **settings: Any) -> Path:
    """Save a random Marian whose padding token begins answers and must not stand in them."""
    shape = {
        **{"vocab_size": 96, "d_model": 64, "max_position_embeddings": 160, "scale_embedding": True},
        **{"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 100},
        **{"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 100, "activation_function": "swish"},
        **{"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": pad, "forced_eos_token_id": end},
    }
    config = MarianConfig(**(shape | settings))
    return _save(folder, config, _WIDTHS["marian"], bad_words_ids=[[pad]], forced_eos_token_id=end)


def _save(
    folder: Path, config: PreTrainedConfig, widths: dict[str, float], *, owns_head: bool = False, **generation: Any
) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)
        if owns_head:
            model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "embed_positions" not in name:
                    width = next(width for part, width in widths.items() if part in name)
                    parameter.copy_(width * torch.randn(parameter.shape) + float(name.endswith("norm.weight")))
            if hasattr(model, "final_logits_bias"):
                model.final_logits_bias += 0.1 * torch.randn(model.final_logits_bias.shape)
    names = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    model.generation_config = GenerationConfig(**{name: getattr(config, name) for name in names}, **generation)
    model.save_pretrained(folder)
    return folder


class EncoderDecoderRun(DecoderRun):
    """An encoder-decoder with its caches; a sequence's number is its row."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        *,
        load: Callable[[Path, torch.dtype], Decoder] | None = None,
    ) -> None:
        super().__init__(folder, dtype, load=load)
        self._model: Any = self.decoder  # with all stages of an encoder-decoder
        self._model.allocate_sources(NUM_ROWS, MAX_SOURCE_TOKENS, dtype, CPU)

    @torch.inference_mode()
    def read(self, sources: dict[int, list[int]]) -> None:
        """Give sequences their sources."""
        self._model.read_sources(list(sources), [torch.tensor(source) for source in sources.values()])


@torch.inference_mode()
def transformers_logits(folder: Path, source: list[int], answer: list[int]) -> torch.Tensor:
    """The logits that transformers computes for every position of an answer, [num_tokens, vocab_size]."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([answer])).logits[0]


@torch.inference_mode()
def transformers_tokens(folder: Path, source: list[int], count: int) -> list[int]:
    """The tokens that transformers generates greedily, without the one that begins the answer."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    generated = model.generate(torch.tensor([source]), max_new_tokens=count, num_beams=1, do_sample=False)
    return generated[0, 1:].tolist()
