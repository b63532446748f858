"""Runs a model over ranks and stages without an engine: all stages of a tensor rank in its own process or thread."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from decoder_runs import CPU, DecoderRun
from encoder_decoder_runs import EncoderDecoderRun
from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import load_decoder
from rayinfer.models.model_config import read_model_config
from rayinfer.tensor_parallel import Alone, Place, Share, TensorGroup
from staged_decoder import StagedDecoder

PROMPT = [(7 * i * i + 3 * i + 11) % 96 for i in range(45)]
NUM_DECODED = 12
ShareLoader = Callable[[Path, torch.dtype, Share], Decoder]


class Answer(NamedTuple):
    """Logits of a prompt in two uneven chunks and of the greedy tokens behind it, and these tokens."""

    logits: torch.Tensor  # [num_tokens, vocab_size]
    token_ids: list[int]


def load_share(folder: Path, dtype: torch.dtype, share: Share) -> Decoder:
    """Load what the checkpoint has for this rank."""
    return load_decoder(folder, dtype, CPU, share)


def answer_of(
    folder: Path,
    group: TensorGroup | None = None,
    num_stages: int = 1,
    dtype: torch.dtype = torch.float32,
    load: ShareLoader = load_share,
) -> Answer:
    """What this tensor rank computes, of all stages one after the other."""
    group = group or Alone()
    places = [Place(stage * group.size + group.rank, group.size, num_stages) for stage in range(num_stages)]

    def load_stages(folder: Path, dtype: torch.dtype) -> Decoder:
        stages = [load(folder, dtype, Share(place, group)) for place in places]
        return stages[0] if num_stages == 1 else StagedDecoder(stages)

    if read_model_config(folder).answers is None:
        run = DecoderRun(folder, dtype, load=load_stages)
    else:
        run = EncoderDecoderRun(folder, dtype, load=load_stages)
        run.read({0: PROMPT[::-1], 1: PROMPT[:7]})
    first, _ = run.feed((0, PROMPT[:31]), (1, PROMPT[:1]))
    (second,) = run.feed((0, PROMPT[31:]))
    greedy = run.decode_greedily(0, int(second[-1].argmax()), NUM_DECODED)
    return Answer(torch.cat((first, second, greedy.logits)), greedy.token_ids)
