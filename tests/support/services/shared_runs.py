"""Runs of a model over ranks and stages without an engine, beside the whole model."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from rayinfer.models.decoder import Decoder
from rayinfer.models.encoder_decoder import EncoderDecoder
from rayinfer.models.loader import load_decoder
from rayinfer.models.model_config import read_model_config
from rayinfer.tensor_parallel import RankCoordinates, Shard, SingleRankGroup, TensorGroup
from support.fakes.linked_stage import LinkedEncoderDecoder, LinkedStage
from support.golden.decoder_runs import CPU, DecoderRun
from support.golden.encoder_decoder_runs import EncoderDecoderRun
from support.services.gloo_ranks import GlooRank
from support.tiny_models.staged_decoder import StagedDecoder, StagedEncoderDecoder

PROMPT = [(7 * i * i + 3 * i + 11) % 96 for i in range(45)]
NUM_DECODED = 12
ShareLoader = Callable[[Path, torch.dtype, Shard], Decoder]


class Answer(NamedTuple):
    """Logits of a prompt in two uneven chunks and of the greedy tokens behind it, and these tokens."""

    logits: torch.Tensor  # [num_tokens, vocab_size]
    token_ids: list[int]


def load_share(folder: Path, dtype: torch.dtype, shard: Shard) -> Decoder:
    """Load what the checkpoint has for this rank."""
    return load_decoder(folder, dtype, CPU, shard)


def answer_of(
    folder: Path,
    group: TensorGroup | None = None,
    num_stages: int = 1,
    dtype: torch.dtype = torch.float32,
    load: ShareLoader = load_share,
) -> Answer:
    """Return what this tensor rank computes, of all stages one after the other."""
    group = group or SingleRankGroup()
    places = [RankCoordinates(stage * group.size + group.rank, group.size, num_stages) for stage in range(num_stages)]

    def load_stages(folder: Path, dtype: torch.dtype) -> Decoder:
        stages = [load(folder, dtype, Shard(place, group)) for place in places]
        if num_stages == 1:
            return stages[0]
        return StagedEncoderDecoder(stages) if isinstance(stages[0], EncoderDecoder) else StagedDecoder(stages)

    return _answer(folder, dtype, load_stages)


def answer_of_stage(folder: Path, rank: GlooRank, num_stages: int, dtype: torch.dtype = torch.float32) -> Answer:
    """Return the output of this rank, which is in one of the stages, and the data received from the last one."""

    def load_stage(folder: Path, dtype: torch.dtype) -> Decoder:
        shard = rank.shard(num_stages)
        stage = load_share(folder, dtype, shard)
        linked = LinkedEncoderDecoder if isinstance(stage, EncoderDecoder) else LinkedStage
        return linked(stage, shard.coordinates, rank.world, dtype)

    return _answer(folder, dtype, load_stage)


def answers_of_rank(
    rank: GlooRank, models: Mapping[str, tuple[Path, torch.dtype]], stages: Sequence[int]
) -> dict[tuple[str, int], Answer]:
    """Return what one rank computes for every model in so many stages.

    It stands here for its process, which would import a whole file of tests otherwise.
    """
    return {
        (name, num_stages): answer_of_stage(folder, rank, num_stages, dtype)
        for name, (folder, dtype) in models.items()
        for num_stages in stages
    }


def _answer(folder: Path, dtype: torch.dtype, load: Callable[[Path, torch.dtype], Decoder]) -> Answer:
    if read_model_config(folder).seq2seq is None:
        run = DecoderRun(folder, dtype, load=load)
    else:
        run = EncoderDecoderRun(folder, dtype, load=load)
        run.read({0: PROMPT[::-1], 1: PROMPT[:7]})
    first, _ = run.feed((0, PROMPT[:31]), (1, PROMPT[:1]))
    (second,) = run.feed((0, PROMPT[31:]))
    greedy = run.decode_greedily(0, int(second[-1].argmax()), NUM_DECODED)
    return Answer(torch.cat((first, second, greedy.logits)), greedy.token_ids)
