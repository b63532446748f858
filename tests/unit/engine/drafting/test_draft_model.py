import contextlib

import numpy as np
import pytest
import torch

from rayinfer.engine.drafting.draft_model import DraftModel
from rayinfer.engine.drafting.draft_rows import DraftRows
from rayinfer.engine.drafting.drafter import DraftRow
from rayinfer.kv_cache.cache_tensors import BlockPool, BlockShape
from rayinfer.models.loader import load_decoder
from support.tiny_models.tiny_checkpoints import make_tiny_llama

CPU = torch.device("cpu")
BLOCK_SIZE = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False)


@pytest.fixture(scope="module")
def greedy(folder):
    """Return what follows some tokens, by transformers."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)

    def follows(token_ids, count):
        known = torch.tensor([list(token_ids)])
        for _ in range(count):
            known = torch.cat((known, model(known).logits[:, -1:].argmax(-1)), dim=1)
        return known[0, len(token_ids) :].tolist()

    return follows


class Counted:
    """A decoder whose steps are counted."""

    def __init__(self, decoder):
        self._decoder = decoder
        self.config = decoder.config
        self.steps = []
        self.failure = None

    def forward(self, token_ids, batch, hidden=None):
        if self.failure is not None:
            raise self.failure
        self.steps.append(len(token_ids))
        return self._decoder.forward(token_ids, batch)

    def logits(self, hidden):
        return self._decoder.logits(hidden)


def new_drafter(folder, *, num_rows=4, num_blocks=40, longest=64, max_step_tokens=64, vocab_size=384):
    decoder = load_decoder(folder, torch.float32, CPU)
    decoder.prepare(torch.float32, CPU, longest)
    config = decoder.config
    shape = BlockShape(
        num_layers=config.num_layers,
        block_size=BLOCK_SIZE,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=torch.float32,
    )
    decoder.bind_kv_caches(BlockPool(shape, num_blocks, CPU).caches)
    counted = Counted(decoder)
    rows = DraftRows(num_rows, longest, BLOCK_SIZE, num_blocks)
    drafter = DraftModel(
        counted,
        rows,
        vocab_size=vocab_size,
        longest_sequence=longest,
        max_step_tokens=max_step_tokens,
        hold_cores=contextlib.nullcontext,
    )
    return drafter, counted


def row_of(row, token_ids, limit, request="one"):
    return DraftRow(row=row, request=request, token_ids=np.array(token_ids, np.int32), prompt_len=1, limit=limit)


def numbers(count, start=0):
    return [3 + (start + 7 * i) % 380 for i in range(count)]


def test_drafts_are_the_likeliest_tokens_of_each_row(folder, greedy):
    drafter, counted = new_drafter(folder)
    asked = [(numbers(9), 4), (numbers(20, 5), 1), (numbers(1, 9), 6)]
    drafts = drafter.propose([row_of(row, token_ids, limit) for row, (token_ids, limit) in enumerate(asked)])
    assert drafts == [greedy(token_ids, limit) for token_ids, limit in asked]
    assert counted.steps == [30, 2, 2, 2, 1, 1]  # all rows at once


def test_only_what_is_new_is_computed_and_rejected_drafts_are_overwritten(folder, greedy):
    drafter, counted = new_drafter(folder)
    known = numbers(12)
    for num_right in (3, 0, 2, 1):
        (draft,) = drafter.propose([row_of(0, known, 3)])
        assert draft == greedy(known, 3)
        wrong = 3 if draft[num_right:] and draft[num_right] != 3 else 4
        known += [*draft[:num_right], wrong]
    # Of three drafts the last is never an input; behind it, or behind what was right, everything is new.
    assert counted.steps == [12, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1]


def test_another_request_of_a_row_begins_anew(folder, greedy):
    drafter, counted = new_drafter(folder)
    drafter.propose([row_of(0, numbers(12), 1)])
    assert drafter.propose([row_of(0, numbers(12), 1, request="two")]) == [greedy(numbers(12), 1)]
    assert counted.steps == [12, 12]


def test_a_long_prompt_is_computed_in_several_calls_beside_others(folder, greedy):
    drafter, counted = new_drafter(folder, max_step_tokens=16)
    long, short = numbers(40), numbers(5, 2)
    first = drafter.propose([row_of(0, long, 2), row_of(1, short, 2)])
    assert first == [[], greedy(short, 2)]
    drafter.propose([row_of(0, long, 2)])
    assert drafter.propose([row_of(0, long, 2)]) == [greedy(long, 2)]
    assert counted.steps == [16, 1, 16, 13, 1]


def test_rows_that_have_not_drafted_for_long_give_their_blocks(folder, greedy):
    drafter, counted = new_drafter(folder, num_blocks=4)
    for row in (0, 1):
        drafter.propose([row_of(row, numbers(14, row), 2)])
    assert drafter.propose([row_of(0, numbers(14), 2)]) == [greedy(numbers(14), 2)]
    assert drafter.propose([row_of(2, numbers(14, 2), 2)]) == [greedy(numbers(14, 2), 2)]  # takes those of row 1
    assert counted.steps == [14, 1, 14, 1, 1, 1, 14, 1]
    both = drafter.propose([row_of(0, numbers(14), 2), row_of(1, numbers(30, 1), 2)])  # too little for both
    assert both == [greedy(numbers(14), 2), ()] or both == [greedy(numbers(14), 2), []]


def test_no_position_is_beyond_the_longest_sequence(folder, greedy):
    drafter, _ = new_drafter(folder, longest=16)
    known = numbers(14)
    assert drafter.propose([row_of(0, known, 9)]) == [greedy(known, 3)]  # the last is no input
    assert drafter.propose([row_of(0, numbers(16), 9)]) == [greedy(numbers(16), 1)]
    assert drafter.propose([row_of(0, numbers(17), 9)]) == [[]]


def test_tokens_that_one_of_the_models_lacks_do_no_harm(folder):
    drafter, _ = new_drafter(folder, vocab_size=50)
    (draft,) = drafter.propose([row_of(0, [7, 9999, 8], 5)])
    assert len(draft) == 5
    assert max(draft) < 50


def test_a_failure_costs_the_drafts_alone(folder, greedy, caplog):
    drafter, counted = new_drafter(folder)
    drafter.propose([row_of(0, numbers(9), 2)])
    counted.failure = RuntimeError("no memory")
    assert drafter.propose([row_of(0, numbers(9), 2), row_of(1, numbers(3), 1)]) == [(), ()]
    assert "no memory" in caplog.text
    counted.failure = None
    assert drafter.propose([row_of(0, numbers(9), 2)]) == [greedy(numbers(9), 2)]


def test_rows_with_random_acceptance_get_what_a_model_without_memory_would_draft(folder, greedy):
    drafter, _ = new_drafter(folder, num_rows=3, num_blocks=14, max_step_tokens=24)
    chance = np.random.default_rng(1)
    requests = {row: (0, numbers(int(chance.integers(1, 20)), row)) for row in range(3)}
    for step in range(60):
        rows = [row for row in requests if chance.random() < 0.8]
        asked = [row_of(row, requests[row][1], int(chance.integers(1, 5)), requests[row][0]) for row in rows]
        for each, draft in zip(asked, drafter.propose(asked), strict=True):
            assert list(draft) in ([], greedy(each.token_ids.tolist(), len(draft)))
            number, known = requests[each.row]
            new = chance.integers(3, 380, size=chance.integers(1, 4)).tolist()  # also steps without drafts
            known = [*known, *draft[: int(chance.integers(0, 5))], *new]
            requests[each.row] = (number, known) if len(known) < 60 else (number + 100 + step, known[:7])
