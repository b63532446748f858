"""Random scripts of submissions, aborts, rests, time and failures over small pools: what holds whatever happens."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from rayinfer.outputs import EngineState
from rayinfer.protocols import Pause, Resume, Sleep, Wake
from support.fakes.fake_drafter import UnreliableDrafter
from support.fakes.fake_executor import EOS, INVALID, VOCAB_SIZE, drive, expected_tokens, mixed_answer, numbers
from support.fakes.fake_scores import expected_logprobs

POISON, WORTHLESS = 95, 96  # as a prompt's first token: its steps fail, its logits are invalid


def answer(context):
    if context[0] == WORTHLESS and len(context) % 5 == 0:
        return INVALID
    token_id = mixed_answer(context)
    return EOS if token_id % 16 == 0 else token_id


def failure(context):
    return RuntimeError("poison") if context[0] == POISON and len(context) % 3 == 0 else None


@dataclass(frozen=True)
class Submission:
    prompt: tuple[int, ...]
    max_tokens: int | None
    priority: int
    timeout_s: float | None
    tenant: str
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None


@st.composite
def submissions(draw):
    # Few beginnings, so that prefixes are shared; prompts end at and around block borders, and some are very long.
    first = draw(st.sampled_from([3, 3, 3, 4, 5, POISON, WORTHLESS]))
    shared, tail = draw(st.integers(0, 24) | st.integers(24, 120)), draw(st.integers(0, 6))
    wishes = st.sampled_from([None, None, None, None, 0, 2])
    return Submission(
        (first, *numbers(shared), *numbers(tail, draw(st.integers(0, 3)))),
        draw(st.none() | st.integers(0, 12)),
        draw(st.sampled_from([0, 0, 0, 1, -1, 10])),
        draw(st.sampled_from([None, None, None, 0.0, 0.5, 5.0])),
        draw(st.sampled_from(["", "", "other"])),
        draw(st.booleans()),
        draw(wishes),
        draw(wishes),
    )


@st.composite
def sizes(draw):
    return {
        "block_size": draw(st.sampled_from([1, 2, 4, 8])),
        "num_blocks": draw(st.integers(2, 16)),
        "max_num_seqs": draw(st.integers(1, 6)),
        "budget": draw(st.sampled_from([1, 2, 3, 7, 16, 64])),
        "caching": draw(st.sampled_from([True, True, True, False])),
        "num_offload_blocks": draw(st.sampled_from([0, 0, 3, 16])),
    }


def wanted_tokens(submission, max_model_len):
    """Return what the request would get alone, and how it would end."""
    tokens, context = [], list(submission.prompt)
    while True:
        if failure(context):
            return tokens, "error"
        if submission.max_tokens == 0:
            return tokens, "length"
        token_id = answer(context)
        if token_id == INVALID:
            return tokens, "error"
        tokens.append(token_id)
        context.append(token_id)
        if token_id == EOS and not submission.ignore_eos:
            return tokens, "stop"
        if len(tokens) == submission.max_tokens or len(context) == max_model_len:
            return tokens, "length"


def wanted_logprobs(context, num_top, first):
    return [expected_logprobs(context[:i], context[i], num_top, VOCAB_SIZE) for i in range(first, len(context))]


class Scripts(RuleBasedStateMachine):
    """One engine under random commands; afterwards every request has ended as if alone."""

    max_concurrent_batches = 1
    supports_async_scheduling = False

    @initialize(size=sizes())
    def build(self, size):
        self.start_engine(**size)

    def start_engine(self, **settings):
        steps = {
            "max_concurrent_batches": self.max_concurrent_batches,
            "supports_async_scheduling": self.supports_async_scheduling,
        }
        self.driven = drive(answer=answer, failure=failure, **steps, **settings)
        self.submitted = {}

    @rule(submission=submissions())
    def submit(self, submission):
        self.queue(submission)

    def queue(self, submission, **params):
        driven, request_id = self.driven, f"r{len(self.submitted)}"
        longest = driven.engine.description.max_model_len - 1
        submission = Submission(submission.prompt[:longest], *list(vars(submission).values())[1:])
        driven.add(request_id, **vars(submission), stop_token_ids=() if submission.ignore_eos else (EOS,), **params)
        self.submitted[request_id] = submission

    @rule(number=st.integers(0, 12))
    def abort(self, number):
        self.driven.abort(f"r{number}")

    @rule(count=st.integers(1, 8), seconds=st.sampled_from([0.0, 0.1, 1.0]))
    def step(self, count, seconds):
        self.driven.clock.now += seconds
        for _ in range(count):
            self.driven.step()  # whose checks include the budget

    @rule(level=st.sampled_from([None, None, 0, 1, 2]))
    def rest(self, level):
        self.change(level)

    def change(self, level):
        engine = self.driven.engine
        if engine.stats.state == EngineState.ASLEEP:
            engine.control(Wake())
        elif level is None:
            engine.control(Pause())
        else:
            engine.control(Sleep(level))

    @rule()
    def resume(self):
        self.driven.engine.control(Wake())
        self.driven.engine.control(Resume())

    @invariant()
    def no_request_is_counted_twice_or_lost(self):
        stats = self.driven.engine.stats
        num_finished = sum(stats.requests_finished_total.values())
        assert stats.num_running + stats.num_waiting + num_finished == len(self.submitted)
        num_untold = num_finished - len(self.driven.ends)  # known since a sleep
        assert num_untold == 0 or (num_untold > 0 and self.driven.engine.can_advance)

    def teardown(self):
        if not hasattr(self, "driven"):
            return
        self.resume()
        self.driven.run(max_steps=3000)  # nobody waits for ever, and all blocks come back
        assert self.driven.ends.keys() == self.submitted.keys()
        assert sum(self.driven.engine.stats.requests_finished_total.values()) == len(self.submitted)
        batch = self.driven.scheduler.batch
        assert not batch.priorities
        assert not batch.in_flight_prefixes
        assert not batch.table.rows_with_details | batch.table.rows_with_stop_ids | batch.table.prompt_only_rows
        for request_id, submission in self.submitted.items():
            self.check_end(request_id, submission)

    def check_end(self, request_id, submission):
        driven = self.driven
        wanted, wanted_reason = wanted_tokens(submission, driven.engine.description.max_model_len)
        got, reason = driven.tokens[request_id], driven.ends[request_id].finish_reason
        # A poisoned chunk may fail before the prompt is whole: its end is an error, sooner than alone.
        if reason in ("abort", "timeout") or submission.prompt[0] == POISON:
            assert got == wanted[: len(got)]
        else:
            assert (got, reason) == (wanted, wanted_reason)
        told = driven.logprobs.get(request_id, [])
        if submission.logprobs is None:
            assert told == []
        else:
            assert told == wanted_logprobs([*submission.prompt, *got], submission.logprobs, len(submission.prompt))
        told_of_prompt = driven.prompt_logprobs.get(request_id)
        if submission.prompt_logprobs is None or not (got or reason == "length"):
            assert told_of_prompt is None
        else:
            assert told_of_prompt == [None, *wanted_logprobs(submission.prompt, submission.prompt_logprobs, 1)]


def follows(context):
    tokens = []
    for _ in range(6):
        tokens.append(max(0, answer([*context, *tokens])))
    return tokens


class ScriptsWithDrafts(Scripts):
    """The same with drafts of which some are accepted, whole or in part."""

    @initialize(size=sizes(), chance=st.randoms(use_true_random=False), speculation=st.sampled_from(["auto", 1, 5, 16]))
    def build(self, size, chance, speculation):
        self.start_engine(drafter=UnreliableDrafter(follows, VOCAB_SIZE, chance), speculation=speculation, **size)

    @rule(submission=submissions(), speculation=st.sampled_from([None, None, "off", "auto", 3]))
    def submit(self, submission, speculation):
        self.queue(submission, speculation=speculation)


class ScriptsOfTwoStepsAtOnce(Scripts):
    """The same with asynchronous scheduling; no step fails there but for good."""

    max_concurrent_batches = 2

    @rule(submission=submissions().filter(lambda submission: submission.prompt[0] != POISON))
    def submit(self, submission):
        self.queue(submission)


class ScriptsPlannedAhead(Scripts):
    """The same where each step goes on from tokens of the one before that are not known yet."""

    supports_async_scheduling = True


class ScriptsOfTwoStepsAtOnceWithDrafts(ScriptsWithDrafts):
    """Drafts in micro-batches, one of which is planned while another is in flight; steps fail here."""

    max_concurrent_batches = 2


class ScriptsPlannedAheadWithDrafts(ScriptsWithDrafts):
    """Drafts of rows that wait for their tokens, in steps with others that do not."""

    supports_async_scheduling = True


@pytest.mark.parametrize(
    ("scripts", "count"),
    [
        (Scripts, 150),  # chosen at random, others in each run
        (ScriptsWithDrafts, 75),
        (ScriptsOfTwoStepsAtOnce, 75),
        (ScriptsPlannedAhead, 75),
        (ScriptsOfTwoStepsAtOnceWithDrafts, 100),
        (ScriptsPlannedAheadWithDrafts, 150),
        *(
            pytest.param(scripts, 1000, marks=pytest.mark.every_case)
            for scripts in (
                *(Scripts, ScriptsWithDrafts, ScriptsOfTwoStepsAtOnce, ScriptsPlannedAhead),
                *(ScriptsOfTwoStepsAtOnceWithDrafts, ScriptsPlannedAheadWithDrafts),
            )
        ),
    ],
)
def test_every_request_ends_once_with_right_tokens_and_freed_blocks(scripts, count):
    run_state_machine_as_test(
        scripts,
        settings=settings(
            max_examples=count, stateful_step_count=16, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_the_reference_of_these_scripts_is_the_executors_answer():
    submission = Submission(tuple(numbers(5)), 6, 0, None, "", True, None, None)
    assert wanted_tokens(submission, 100) == (expected_tokens(numbers(5), 6, answer), "length")
