import contextlib

import numpy as np
import pytest
import torch

from rayinfer.engine.drafting.draft_rows import DraftRows
from rayinfer.engine.drafting.drafter import DraftRow
from rayinfer.engine.drafting.eagle_drafter import EagleDrafter
from rayinfer.kv_cache.cache_tensors import BlockPool, BlockShape
from rayinfer.models.eagle3 import load_eagle3_head
from support.tiny_models.tiny_eagle3 import HeadShape, PlainHead, make_tiny_eagle3

CPU = torch.device("cpu")
SHAPE = HeadShape()
EMBEDDING = torch.randn(SHAPE.vocab, SHAPE.hidden, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_eagle3(tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def plain(folder):
    return PlainHead(folder, EMBEDDING)


def states_of(token_ids):
    """Return states that depend on each token and its position."""
    generator = torch.Generator()
    rows = []
    for position, token_id in enumerate(token_ids):
        generator.manual_seed(1000 * position + int(token_id))
        rows.append(torch.randn(3 * SHAPE.hidden, generator=generator))
    return torch.stack(rows) if rows else torch.zeros(0, 3 * SHAPE.hidden)


class Driven:
    """A drafter, and requests whose model computes their tokens."""

    def __init__(self, folder, *, num_rows=3, num_blocks=30, longest=96, max_step_tokens=64):
        head = load_eagle3_head(folder, torch.float32, CPU)
        head.prepare(torch.float32, CPU, longest)
        shape = BlockShape(
            num_layers=1, block_size=8, num_kv_heads=SHAPE.kv_heads, head_dim=SHAPE.head_dim, dtype=torch.float32
        )
        head.bind_kv_caches(BlockPool(shape, num_blocks, CPU).caches)
        self.drafter = EagleDrafter(
            head,
            lambda token_ids: EMBEDDING[token_ids.long()],
            DraftRows(num_rows, longest, 8, num_blocks),
            longest_sequence=longest,
            max_step_tokens=max_step_tokens,
            hold_cores=contextlib.nullcontext,
        )

    def compute(self, *steps, new=()):
        """Let the model compute tokens of rows, from a position on: (row, all its tokens, start)."""
        rows, ends, counts, parts = [], [], [], []
        for row, token_ids, start in steps:
            rows.append(row)
            ends.append(len(token_ids))
            counts.append(len(token_ids) - start)
            parts.append(states_of(token_ids)[start:])
        self.drafter.observe(new, rows, ends, counts, torch.cat(parts))

    def propose(self, *asked):
        return [
            list(draft)
            for draft in self.drafter.propose(
                [
                    DraftRow(row=row, request=row, token_ids=np.array(known, np.int32), prompt_len=1, limit=limit)
                    for row, known, limit in asked
                ]
            )
        ]


def numbers(count, start=0):
    return [3 + (start + 7 * i) % 380 for i in range(count)]


def wanted(plain, token_ids, limit, base=0):
    return plain.drafts(token_ids[base:], states_of(token_ids)[base:-1], limit)


def test_drafts_are_those_of_a_head_that_computes_all_anew(folder, plain):
    driven, one, two = Driven(folder), numbers(9), numbers(20, 5)
    driven.compute((0, one[:-1], 0), (2, two[:-1], 0), new=[0, 2])
    assert driven.propose((0, one, 4), (2, two, 2)) == [wanted(plain, one, 4), wanted(plain, two, 2)]
    assert driven.propose((1, numbers(4), 3)) == [[]]  # nothing is known of it


def test_states_of_rejected_drafts_are_not_read(folder, plain):
    driven, known = Driven(folder), numbers(10)
    driven.compute((0, known[:-1], 0), new=[0])
    for num_right in (3, 0, 2, 1, 3):
        (draft,) = driven.propose((0, known, 3))
        assert draft == wanted(plain, known, 3)
        driven.compute((0, [*known, *draft], len(known) - 1))
        known = [*known, *draft[:num_right], 4]
    driven.compute((0, known, len(known) - 1))  # a step without drafts
    known.append(77)
    assert driven.propose((0, known, 2)) == [wanted(plain, known, 2)]


def test_tokens_that_the_model_has_not_computed_are_left_out(folder, plain):
    driven, known = Driven(folder), numbers(30)
    driven.compute((0, known[:-1], 16), new=[0])  # two blocks were cached
    assert driven.propose((0, known, 3)) == [wanted(plain, known, 3, base=16)]


@pytest.mark.parametrize("has_read", [False, True])
def test_another_request_of_a_row_begins_anew(has_read, folder, plain):
    driven = Driven(folder)
    driven.compute((0, numbers(8), 0), new=[0])
    if has_read:
        driven.propose((0, numbers(9), 3))
    other = [*numbers(8), *numbers(6, 3)]
    driven.compute((0, other[:-1], 8), new=[0])  # as if it went on
    assert driven.propose((0, other, 3)) == [wanted(plain, other, 3, base=8)]


def test_long_prompts_are_read_in_parts_and_rows_give_their_blocks(folder, plain):
    driven = Driven(folder, max_step_tokens=16, num_blocks=6)
    known, other = numbers(40), numbers(10, 3)
    driven.compute((0, known[:-1], 0), (1, other[:-1], 0), new=[0, 1])
    assert driven.propose((0, known, 2)) == [[]]
    assert driven.propose((0, known, 2)) == [[]]
    assert driven.propose((0, known, 2)) == [wanted(plain, known, 2)]
    assert driven.propose((1, other, 2)) == [wanted(plain, other, 2)]  # takes the blocks of the first
    assert driven.propose((0, known, 2)) == [[]]
    driven.compute((0, [*known, 5], 39))
    assert driven.propose((0, [*known, 5, 9], 1)) == [wanted(plain, [*known, 5, 9], 1, base=39)]


def test_no_position_is_beyond_the_longest_sequence(folder, plain):
    driven, known = Driven(folder, longest=16), numbers(16)
    driven.compute((0, known[:-1], 0), new=[0])
    assert driven.propose((0, known, 9)) == [wanted(plain, known, 2)]
    driven.compute((0, [*known, 8, 9], 15))
    assert driven.propose((0, [*known, 8, 9, 10], 9)) == [[]]


def test_without_a_head_there_are_no_drafts(folder, plain):
    driven, known = Driven(folder), numbers(9)
    driven.compute((0, known[:-1], 0), new=[0])
    head = driven.drafter.head
    driven.drafter.use(None)
    assert driven.propose((0, known, 2)) == [[]]
    driven.drafter.use(head)
    assert driven.propose((0, known, 2)) == [[]]  # it has forgotten
    driven.compute((0, [*known, 8], 8))
    assert driven.propose((0, [*known, 8, 9], 2)) == [wanted(plain, [*known, 8, 9], 2, base=8)]
