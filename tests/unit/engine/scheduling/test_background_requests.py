"""Background requests (priority 10): they delay the first token of another request by the running step at most."""

import numpy as np
import pytest

from support.fakes.fake_executor import drive, expected_tokens, numbers

BACKGROUND = 10
SCHEDULES = pytest.mark.parametrize("supports_async_scheduling", [False, True], ids=["sync", "async"])


def counts_of_last_plan(driven):
    plan = driven.executor.plans[-1]
    counts = np.diff(plan.cu_seqlens_q).tolist()
    return {driven.scheduler.request_id_at(int(row)): count for row, count in zip(plan.rows, counts, strict=True)}


def with_background(number=4, prompt_len=6, **settings):
    driven = drive(num_blocks=128, caching=False, **settings)
    for index in range(number):
        driven.add(f"row {index}", numbers(prompt_len, index), max_tokens=20, priority=BACKGROUND)
    driven.step()
    return driven


def check_rows(driven, number=4, prompt_len=6):
    for index in range(number):
        assert driven.tokens[f"row {index}"] == expected_tokens(numbers(prompt_len, index), 20)


@SCHEDULES
def test_a_step_with_another_prompt_has_no_background_tokens(supports_async_scheduling):
    driven = with_background(supports_async_scheduling=supports_async_scheduling)
    driven.step()
    driven.add("interactive", numbers(9, 50), max_tokens=3)
    steps = [driven.step() for _ in range(3)]
    alone = next(names for names in driven.executor.names if "interactive" in names)
    assert alone == {"interactive"}
    assert "interactive" in {delta.request_id for step in steps for delta in step}
    assert len(driven.running()) == 5  # its next tokens come beside the rows'
    driven.run()
    check_rows(driven)
    assert driven.tokens["interactive"] == expected_tokens(numbers(9, 50), 3)


def test_a_long_prompt_has_the_whole_budget_of_its_steps():
    driven = with_background(budget=10)
    driven.step()
    driven.add("interactive", numbers(25, 50), max_tokens=1)
    counts = []
    while "interactive" not in driven.ends:
        driven.step()
        counts.append(driven.executor.plans[-1].num_tokens)
    assert counts == [10, 10, 5]
    driven.run()
    check_rows(driven)


def test_waiting_background_prompts_are_not_computed_beside_another():
    driven = drive(num_blocks=128, caching=False)
    driven.add("row 0", numbers(6, 0), max_tokens=20, priority=BACKGROUND)
    driven.add("interactive", numbers(6, 50), max_tokens=4)
    driven.step()
    assert counts_of_last_plan(driven) == {"interactive": 6}
    driven.step()
    assert counts_of_last_plan(driven) == {"interactive": 1, "row 0": 6}
    driven.run()
    check_rows(driven, 1)


def test_a_background_row_leaves_for_another_request_however_old_it_is():
    driven = with_background(max_num_seqs=4)
    driven.add("row 4", numbers(6, 4), max_tokens=20, priority=BACKGROUND)
    driven.clock.now += 3600.0
    driven.add("interactive", numbers(9, 50), max_tokens=1)
    driven.step()
    assert driven.executor.names[-1] == {"interactive"}
    assert list(driven.ends) == ["interactive"]
    driven.run()
    check_rows(driven, 5)


def test_other_low_priorities_decode_beside_a_prompt():
    driven = drive(num_blocks=128)
    driven.add("low", numbers(6), max_tokens=20, priority=BACKGROUND - 1)
    driven.step()
    driven.add("interactive", numbers(9, 50), max_tokens=3)
    driven.step()
    assert counts_of_last_plan(driven) == {"low": 1, "interactive": 9}
