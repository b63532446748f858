import itertools

import numpy as np
import pytest

from rayinfer.engine.scheduling.request import RequestStatus, new_request
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.preparation import hash_prompt_blocks
from rayinfer.sampling_params import SamplingParams

WAITING, WAITING_FOR_PREFIX, RUNNING, FINISHED = RequestStatus
LEGAL = {
    (WAITING, WAITING_FOR_PREFIX),
    (WAITING, RUNNING),
    (WAITING, FINISHED),
    (WAITING_FOR_PREFIX, WAITING),
    (WAITING_FOR_PREFIX, FINISHED),
    (RUNNING, WAITING),
    (RUNNING, FINISHED),
}
WAY_TO = {WAITING: (), WAITING_FOR_PREFIX: (WAITING_FOR_PREFIX,), RUNNING: (RUNNING,), FINISHED: (FINISHED,)}


def accepted(*, max_model_len=100, eos_token_ids=(2,), params=None, **fields):
    request = GenerationRequest(
        request_id="r/0", prompt_token_ids=[5, 6, 7], sampling_params=params or SamplingParams(), **fields
    )
    token_ids = np.array([*request.prompt_token_ids, *request.output_token_ids], np.int32)
    return new_request(
        request, token_ids, seed=77, max_model_len=max_model_len, block_size=4, eos_token_ids=eos_token_ids, now=50.0
    )


@pytest.mark.parametrize("version", [0, 3])
def test_engines_and_routers_name_the_blocks_of_one_version_of_weights_alike(version):
    request = GenerationRequest(request_id="r/0", prompt_token_ids=list(range(10)), sampling_params=SamplingParams())
    token_ids = np.arange(10, dtype=np.int32)
    settings = {"seed": 0, "max_model_len": 100, "block_size": 4, "eos_token_ids": (), "now": 0.0}
    own = new_request(request, token_ids, weights_version=version, **settings)
    own.block_hashes.extend(token_ids, 10)
    assert own.block_hashes.hashes == hash_prompt_blocks(request, 4, version)
    assert own.block_hashes.hashes != hash_prompt_blocks(request, 4, version + 1)


@pytest.mark.parametrize(("before", "after"), sorted(LEGAL, key=str))
def test_a_request_takes_every_legal_move(before, after):
    request = accepted()
    for status in (*WAY_TO[before], after):
        request.move_to(status)
    assert request.status is after
    assert request.is_finished == (after is FINISHED)


@pytest.mark.parametrize(("before", "after"), sorted(set(itertools.product(RequestStatus, repeat=2)) - LEGAL, key=str))
def test_a_request_refuses_every_other_move(before, after):
    request = accepted()
    for status in WAY_TO[before]:
        request.move_to(status)
    with pytest.raises(AssertionError, match=f"r/0: {before.value} -> {after.value}"):
        request.move_to(after)
    assert request.status is before


def test_max_tokens_counts_from_the_prompts_end_also_when_outputs_are_there_already():
    request = accepted(params=SamplingParams(max_tokens=10), output_token_ids=[8, 9])
    assert request.prompt_len == 3
    assert request.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert request.max_total_tokens == 13


@pytest.mark.parametrize("max_tokens", [98, None])
def test_the_context_clamps_max_tokens(max_tokens):
    assert accepted(params=SamplingParams(max_tokens=max_tokens)).max_total_tokens == 100


def test_a_clients_seed_goes_before_the_engines():
    assert accepted().seed == 77
    assert accepted(params=SamplingParams(seed=0)).seed == 0


def test_end_tokens_are_eos_unless_ignored_and_the_requests_own():
    assert accepted(params=SamplingParams(stop_token_ids=[9])).end_token_ids == (2, 9)
    assert accepted(params=SamplingParams(stop_token_ids=[9], ignore_eos=True)).end_token_ids == (9,)
    assert accepted(eos_token_ids=(1, 2)).end_token_ids == (1, 2)


def test_remaining_seconds_become_a_date_of_the_engines_clock():
    assert accepted(timeout_s=3.5).deadline == 53.5
    assert accepted().deadline is None


def test_tenant_salt_and_adapter_cannot_be_mistaken_for_each_other():
    names = ("", "a", "b", "a\0b", "\ud800", "'", "a', 'b")
    salts = [
        accepted(tenant=tenant, cache_salt=salt, adapter=adapter).salt
        for tenant, salt, adapter in itertools.product(names, repeat=3)
    ]
    assert len(set(salts)) == len(salts)


def test_a_request_enters_a_row_with_its_prompt_and_outputs_apart():
    request = accepted(output_token_ids=[8, 9], choice=3)
    entered = request.new_request_data(6, request.token_ids)
    assert (entered.row, entered.choice, entered.seed) == (6, 3, 77)
    assert entered.prompt_token_ids.tolist() == [5, 6, 7]
    assert entered.output_token_ids.tolist() == [8, 9]
