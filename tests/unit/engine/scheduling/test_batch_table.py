import numpy as np
import pytest

from rayinfer.engine.scheduling.batch_table import BatchTable
from rayinfer.engine.scheduling.request import new_request
from rayinfer.priority_queue import PriorityQueue
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams


def request(length, blocks, **params):
    made = new_request(
        GenerationRequest(
            request_id=f"{length}", prompt_token_ids=list(range(length)), sampling_params=SamplingParams(**params)
        ),
        np.arange(length, dtype=np.int32),
        seed=0,
        max_model_len=32,
        block_size=4,
        eos_token_ids=(2,),
        now=0.0,
    )
    made.blocks = blocks
    made.queue_entry = PriorityQueue().push(made, priority=0, arrival=0.0)
    return made


def take(table, made, num_computed=0, num_stored_blocks=0):
    return table.add_row(made, num_computed=num_computed, num_stored_blocks=num_stored_blocks)


def test_rows_are_taken_in_order_and_used_again():
    table = BatchTable(3, 32, 4)
    rows = [take(table, request(5, [0, 1])) for _ in range(3)]
    assert sorted(rows) == [0, 1, 2]
    assert not table.has_free_row
    table.remove_row(rows[1])
    assert table.rows.tolist() == [rows[0], rows[2]]
    assert take(table, request(5, [0, 1])) == rows[1]
    assert table.rows.tolist() == [rows[0], rows[2], rows[1]]  # oldest first
    assert len(table) == 3


def test_a_row_that_is_used_again_keeps_nothing_of_its_last_request():
    table = BatchTable(1, 32, 4)
    take(table, request(5, [0, 1], stop_token_ids=[9], ignore_eos=True), 4, 1)
    table.remove_row(0)
    take(table, request(3, [7]))
    assert not table.rows_with_stop_ids
    assert table.checks_eos[0]
    assert (table.num_tokens[0], table.num_computed[0], table.num_blocks[0], table.num_stored_blocks[0]) == (3, 0, 1, 0)


def test_released_tokens_go_back_to_their_request():
    table = BatchTable(1, 32, 4)
    made = request(3, [5])
    row = take(table, made)
    table.append(np.array([row]), np.array([77]))
    assert table.remove_row(row) is made
    assert made.token_ids.tolist() == [0, 1, 2, 77]
    with pytest.raises(AssertionError, match="row 0 is free"):
        table.request_at(row)


def test_a_plan_finds_every_token_in_its_block():
    table = BatchTable(2, 32, 4)
    rows = np.array([take(table, request(6, [9, 3])), take(table, request(5, [4, 8]), 4, 1)])
    table.add_blocks(rows[:1], [6])
    table.num_scheduled[rows] = [5, 1]
    plan = table.assemble(step=1, new_requests=())
    assert plan.token_ids.tolist() == [0, 1, 2, 3, 4, 4]
    assert plan.positions.tolist() == [0, 1, 2, 3, 4, 4]
    assert plan.slot_mapping.tolist() == [36, 37, 38, 39, 12, 32]
    assert plan.cu_seqlens_q.tolist() == [0, 5, 6]
    assert plan.seq_lens.tolist() == [5, 5]
    assert plan.samples.tolist() == [False, True]
    assert plan.block_tables.tolist() == [[9, 3], [4, 8]]


def test_ends_are_each_rows_own():
    table = BatchTable(3, 32, 4)
    kinds = ({}, {"ignore_eos": True}, {"stop_token_ids": [5, 6]})
    rows = np.array([take(table, request(3, [0], **params)) for params in kinds])
    eos = (2,)
    assert table.check_stop(rows, np.array([2, 2, 2]), eos).tolist() == [True, False, True]
    assert table.check_stop(rows, np.array([5, 5, 5]), eos).tolist() == [False, False, True]
    assert table.check_stop(rows, np.array([7, 7, 7]), eos).tolist() == [False, False, False]
