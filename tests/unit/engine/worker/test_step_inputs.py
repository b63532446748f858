"""The arrays of a step on the device: laid out in one copy, and with the tokens that only the device knows."""

import numpy as np
import pytest
import torch
from msgspec import structs

from rayinfer.engine.worker.step_inputs import FutureTokens, num_decodes, upload_plan
from rayinfer.engine.worker.step_upload import StepUpload
from support.fakes.step_plans import make_plan

CPU = torch.device("cpu")


def plan(counts, samples, uses_last_sampled=None):
    chunks = {len(counts) - 1 - i: (0, count) for i, count in enumerate(counts)}
    return make_plan(
        chunks,
        token_ids=range(100, 100 + sum(counts)),
        samples=samples,
        first_slot=7,
        num_blocks=3,
        uses_last_sampled=uses_last_sampled,
    )


def test_arrays_arrive_with_their_shapes_and_types_whatever_their_strides():
    arrays = [
        np.arange(5, dtype=np.int32),
        np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],
        np.array([True, False]),
        np.zeros((0, 4), np.float32),
        np.arange(3, dtype=np.float64),
    ]
    for array, tensor in zip(arrays, StepUpload(CPU).send(arrays), strict=True):
        assert torch.from_numpy(array.copy()).dtype == tensor.dtype
        assert tensor.numpy().tolist() == array.tolist()
        assert tensor.shape == array.shape


def test_an_in_flight_step_is_not_overwritten():
    upload = StepUpload(CPU)
    first = upload.send([np.full(4, 1)])[0]
    second = upload.send([np.full(4, 2)])[0]
    assert (first.tolist(), second.tolist()) == ([1] * 4, [2] * 4)
    upload.send([np.full(4, 3)])
    assert second.tolist() == [2] * 4


def test_memory_grows_with_a_step_and_is_kept_for_smaller_ones():
    upload = StepUpload(CPU, num_buffers=1)
    addresses = []
    for size in (10, 100_000, 10, 100_000):
        (tensor,) = upload.send([np.arange(size)])
        assert tensor.tolist() == list(range(size))
        addresses.append(tensor.data_ptr())
    assert len(set(addresses)) == 2
    assert len(set(addresses[1:])) == 1


def test_a_decoding_step_samples_every_line():
    inputs = upload_plan(plan([1, 1, 1], [True] * 3), StepUpload(CPU))
    assert inputs.sampled_lines is None
    assert inputs.sampled_rows.tolist() == [2, 1, 0]
    assert inputs.batch.block_tables.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_of_prompts_the_last_tokens_are_sampled():
    inputs = upload_plan(plan([3, 2, 1], [True, False, True]), StepUpload(CPU))
    assert inputs.sampled_rows.tolist() == [2, 0]
    assert inputs.sampled_lines.tolist() == [2, 5]


def test_hidden_states_are_returned_of_the_tokens_that_are_sampled_behind():
    prompts = plan([3, 2, 1], [True, False, True])
    outputs = upload_plan(prompts, StepUpload(CPU)).batch.outputs
    assert (outputs.lines.tolist(), outputs.cu_seqlens.tolist()) == ([2, 5], [0, 1, 1, 2])
    chunks = upload_plan(plan([3, 2], [False, False]), StepUpload(CPU)).batch.outputs
    assert (chunks.lines.tolist(), chunks.cu_seqlens.tolist()) == ([], [0, 0, 0])
    with_drafts = structs.replace(prompts, num_drafts=np.array([1, 1, 0], np.int32))
    outputs = upload_plan(with_drafts, StepUpload(CPU)).batch.outputs
    assert (outputs.lines.tolist(), outputs.cu_seqlens.tolist()) == ([1, 2, 5], [0, 2, 2, 3])


def test_hidden_states_are_returned_of_all_tokens_where_they_are_read_or_sampled_behind():
    assert upload_plan(plan([1, 1], [True] * 2), StepUpload(CPU)).batch.outputs is None
    all_drafts = structs.replace(plan([3, 1], [True] * 2), num_drafts=np.array([2, 0], np.int32))
    assert upload_plan(all_drafts, StepUpload(CPU)).batch.outputs is None
    read = upload_plan(plan([3, 2], [True, False]), StepUpload(CPU), returns_all=True)
    assert (read.batch.outputs, read.sampled_lines.tolist()) == (None, [2])


def test_a_row_goes_on_from_the_token_that_it_got_last():
    last = FutureTokens(4, CPU)
    last.keep(torch.tensor([0, 1, 2]), torch.tensor([50, 51, 52]))
    last.keep(torch.tensor([1]), torch.tensor([61]))
    step = upload_plan(plan([1, 1, 1], [True] * 3, [True, True, False]), StepUpload(CPU))
    assert last.resolve(step).tolist() == [52, 61, 102]
    mixed = upload_plan(plan([3, 1, 2], [True] * 3, [False, True, False]), StepUpload(CPU))
    assert last.resolve(mixed).tolist() == [100, 101, 102, 61, 104, 105]
    known = upload_plan(plan([1, 1], [True] * 2, [False, False]), StepUpload(CPU))
    assert last.resolve(known).tolist() == [100, 101]


@pytest.mark.parametrize(
    ("cu_seqlens_q", "count"), [([0], 0), ([0, 1, 2, 3], 3), ([0, 5, 6], 0), ([0, 1, 2, 9], 2), ([0, 1, 4, 5], 1)]
)
def test_the_first_requests_that_decode_are_counted(cu_seqlens_q, count):
    assert num_decodes(np.array(cu_seqlens_q, np.int32)) == count
