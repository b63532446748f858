import numpy as np
from msgspec import structs

from rayinfer.engine.plan.step_plan import SampledTokens
from support.fakes.fake_executor import drive, numbers


def test_the_parts_of_a_plan_are_the_plan():
    driven = drive(budget=20)
    driven.add("decodes", numbers(5), max_tokens=9)
    driven.step()
    for start in range(1, 4):
        driven.add(f"r{start}", numbers(8, start))
    driven.step()
    plan = driven.executor.plans[-1]
    assert plan.num_requests == 4
    assert plan.num_tokens == 1 + 8 + 8 + 3
    for cut in range(plan.num_requests + 1):
        parts = plan.part(0, cut), plan.part(cut, plan.num_requests)
        for name in ("rows", "token_ids", "positions", "slot_mapping", "seq_lens", "block_tables", "samples"):
            assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(plan, name))
        assert [new_request.row for part in parts for new_request in part.new_requests] == [
            new_request.row for new_request in plan.new_requests
        ]
        for part in parts:
            assert part.cu_seqlens_q[0] == 0
            assert part.cu_seqlens_q[-1] == part.num_tokens
            assert len(part.cu_seqlens_q) == part.num_requests + 1


def test_slots_that_an_interrupted_step_was_to_empty_are_emptied_by_the_next():
    driven = drive()
    driven.add("a", numbers(5), max_tokens=3)
    plan = driven.scheduler.plan()
    assert plan.emptied_adapter_slots == ()
    driven.scheduler.reschedule(structs.replace(plan, emptied_adapter_slots=(2,)))
    assert 2 in driven.scheduler.plan().emptied_adapter_slots


def test_the_last_token_of_each_request_is_found_behind_its_drafts():
    tokens = SampledTokens(np.array([7, 8, 9, 5]), np.zeros(4, np.bool_))
    assert tokens.last_token_ids.tolist() == [7, 8, 9, 5]
    counts = np.array([1, 3], np.int32)
    assert structs.replace(tokens, counts=counts).last_token_ids.tolist() == [7, 5]
