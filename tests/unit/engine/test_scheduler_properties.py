"""Random scripts of submissions, aborts, time and failures over small pools: what must hold whatever happens."""

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_executor import EOS, INVALID, drive, expected_tokens, mixed_answer, numbers

POISON, WORTHLESS = 95, 96  # as a prompt's first token: its steps fail, its logits are invalid


def answer(context):
    if context[0] == WORTHLESS and len(context) % 5 == 0:
        return INVALID
    token_id = mixed_answer(context)
    return EOS if token_id % 16 == 0 else token_id


def failure(context):
    return RuntimeError("poison") if context[0] == POISON and len(context) % 3 == 0 else None


@dataclass(frozen=True)
class Submit:
    prompt: tuple[int, ...]
    max_tokens: int | None
    priority: int
    timeout_s: float | None
    tenant: str
    ignore_eos: bool


@dataclass(frozen=True)
class Abort:
    number: int


@dataclass(frozen=True)
class Step:
    count: int
    seconds: float


@st.composite
def submissions(draw, longest):
    # Few beginnings, so that prefixes are shared; prompts end at and around block borders.
    first = draw(st.sampled_from([3, 3, 3, 4, 5, POISON, WORTHLESS]))
    shared = draw(st.integers(0, longest - 2))
    tail = draw(st.integers(0, min(6, longest - 2 - shared)))
    prompt = (first, *numbers(shared), *numbers(tail, draw(st.integers(0, 3))))
    return Submit(
        prompt,
        draw(st.none() | st.integers(1, 12)),
        draw(st.sampled_from([0, 0, 0, 1, -1, 10])),
        draw(st.sampled_from([None, None, None, 0.0, 0.5, 5.0])),
        draw(st.sampled_from(["", "", "other"])),
        draw(st.booleans()),
    )


@st.composite
def scripts(draw):
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    num_blocks = draw(st.integers(2, 16))
    size = {
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_num_seqs": draw(st.integers(1, 6)),
        "budget": draw(st.sampled_from([1, 2, 3, 7, 16, 64])),
        "caching": draw(st.sampled_from([True, True, True, False])),
    }
    move = st.one_of(
        submissions(num_blocks * block_size - 1) if num_blocks * block_size > 2 else st.nothing(),
        st.builds(Step, st.integers(1, 6), st.sampled_from([0.0, 0.1, 1.0])),
        st.builds(Abort, st.integers(0, 20)),
    )
    return size, draw(st.lists(move, max_size=30))


def wanted_tokens(submit, max_model_len):
    """What the request would get alone, and how it would end."""
    tokens, context = [], list(submit.prompt)
    while True:
        if failure(context):
            return tokens, "error"
        token_id = answer(context)
        if token_id == INVALID:
            return tokens, "error"
        tokens.append(token_id)
        context.append(token_id)
        if token_id == EOS and not submit.ignore_eos:
            return tokens, "stop"
        if len(tokens) == submit.max_tokens or len(context) == max_model_len:
            return tokens, "length"


def check_ends(driven, submitted, max_model_len):
    assert driven.ends.keys() == submitted.keys()
    for request_id, submit in submitted.items():
        wanted, reason = wanted_tokens(submit, max_model_len)
        got, got_reason = driven.tokens[request_id], driven.ends[request_id].finish_reason
        # A poisoned chunk may fail before the prompt is whole: its end is an error, sooner than alone.
        if got_reason in ("abort", "timeout") or submit.prompt[0] == POISON:
            assert got == wanted[: len(got)]
        else:
            assert (got, got_reason) == (wanted, reason)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts())
def test_whatever_happens_everybody_ends_once_with_the_right_tokens_and_all_blocks_come_back(script):
    size, moves = script
    driven = drive(answer=answer, failure=failure, **size)
    submitted = {}
    for move in moves:
        if isinstance(move, Submit):
            request_id = f"r{len(submitted)}"
            driven.add(
                request_id,
                move.prompt,
                max_tokens=move.max_tokens,
                priority=move.priority,
                timeout_s=move.timeout_s,
                tenant=move.tenant,
                ignore_eos=move.ignore_eos,
            )
            submitted[request_id] = move
        elif isinstance(move, Abort):
            driven.abort(f"r{move.number}")
        else:
            driven.clock.now += move.seconds
            for _ in range(move.count):
                driven.step()
    driven.run(max_steps=3000)
    check_ends(driven, submitted, driven.engine.description.max_model_len)
    assert sum(driven.engine.stats.requests_finished_total.values()) == len(submitted)


def test_the_reference_of_these_scripts_is_the_executors_answer():
    submit = Submit(tuple(numbers(5)), 6, 0, None, "", True)
    assert wanted_tokens(submit, 100) == (expected_tokens(numbers(5), 6, answer), "length")
