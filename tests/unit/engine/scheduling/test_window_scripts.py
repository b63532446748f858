"""Random scripts over models with sliding-window layers, whose pages run short before the blocks do."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from rayinfer.kv_cache.hybrid_sizes import StepSize
from support.fakes.fake_drafter import UnreliableDrafter
from support.fakes.fake_executor import VOCAB_SIZE
from unit.engine.scheduling.test_scheduler_properties import POISON, Scripts, follows, sizes, submissions


@st.composite
def sizes_with_windows(draw, num_steps_at_once=1):
    size = draw(sizes()) | {"num_offload_blocks": 0}
    window = draw(st.sampled_from([1, 2, 5, 8, 9, 20]))
    step = StepSize(
        num_rows=size["max_num_seqs"],
        num_tokens=num_steps_at_once * size["budget"],
        window=window,
        block_size=size["block_size"],
    )
    num_pages = step.pages_of_row + step.pages_of_step + draw(st.integers(0, 6))
    return size | {
        "window": window,
        "num_window_pages": num_pages,
        "num_blocks": num_pages + draw(st.integers(0, 24)),
    }


class ScriptsWithWindows(Scripts):
    """The same with sliding-window layers, whose pages run short before the blocks do."""

    @initialize(size=sizes_with_windows())
    def build(self, size):
        super().build(size)

    @invariant()
    def no_page_is_lost_or_held_twice(self):
        if not hasattr(self, "driven"):
            return
        pages = self.driven.scheduler.blocks.pages
        held = self.driven.scheduler.window_pages_in_use
        assert len(held) == pages.num_used == len(set(held))
        assert pages.num_used + pages.num_free == pages.num_pages
        owned = pages.of_block[pages.of_block >= 0].tolist()
        assert len(owned) == len(set(owned))


class ScriptsWithWindowsAndDrafts(ScriptsWithWindows):
    """The same with drafts."""

    @initialize(size=sizes_with_windows(), chance=st.randoms(use_true_random=False))
    def build(self, size, chance):
        self.start_engine(drafter=UnreliableDrafter(follows, VOCAB_SIZE, chance), **size)


class ScriptsWithWindowsPlannedAhead(ScriptsWithWindows):
    """The same with steps that go on from tokens in flight."""

    supports_async_scheduling = True

    @initialize(size=sizes_with_windows(2))
    def build(self, size):
        super().build(size)


class ScriptsWithWindowsOfTwoStepsAtOnce(ScriptsWithWindows):
    """The same with two micro-batches; no step fails there but for good."""

    max_concurrent_batches = 2

    @initialize(size=sizes_with_windows(2))
    def build(self, size):
        super().build(size)

    @rule(submission=submissions().filter(lambda submission: submission.prompt[0] != POISON))
    def submit(self, submission):
        self.queue(submission)


class ScriptsWithWindowsAndDraftsOfTwoStepsAtOnce(ScriptsWithWindowsAndDrafts):
    """Drafts in micro-batches."""

    max_concurrent_batches = 2

    @initialize(size=sizes_with_windows(2), chance=st.randoms(use_true_random=False))
    def build(self, size, chance):
        super().build(size, chance)


class ScriptsWithWindowsAndDraftsPlannedAhead(ScriptsWithWindowsAndDrafts):
    """Drafts beside rows that go on from tokens in flight."""

    supports_async_scheduling = True

    @initialize(size=sizes_with_windows(2), chance=st.randoms(use_true_random=False))
    def build(self, size, chance):
        super().build(size, chance)


@pytest.mark.parametrize(
    ("scripts", "count"),
    [
        *((ScriptsWithWindows, 30), (ScriptsWithWindowsAndDrafts, 20)),
        *((ScriptsWithWindowsOfTwoStepsAtOnce, 20), (ScriptsWithWindowsPlannedAhead, 20)),
        *((ScriptsWithWindowsAndDraftsOfTwoStepsAtOnce, 20), (ScriptsWithWindowsAndDraftsPlannedAhead, 30)),
        *(
            pytest.param(scripts, 60, marks=pytest.mark.every_case)
            for scripts in (
                *(ScriptsWithWindows, ScriptsWithWindowsAndDrafts),
                *(ScriptsWithWindowsOfTwoStepsAtOnce, ScriptsWithWindowsPlannedAhead),
                *(ScriptsWithWindowsAndDraftsOfTwoStepsAtOnce, ScriptsWithWindowsAndDraftsPlannedAhead),
            )
        ),
    ],
)
def test_every_token_finds_its_window_and_no_page_is_lost(scripts, count):
    run_state_machine_as_test(
        scripts,
        settings=settings(
            max_examples=count, stateful_step_count=16, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
