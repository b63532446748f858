"""Advice on roles follows what long prompts do to other requests, and whether the engines suffice."""

import asyncio

import pytest

from rayinfer.routing.roles.advice import LONG_PROMPT_TOKENS, WINDOW_S, EngineTimes, RoleAdvisor
from support.fakes.fake_service import Service, running
from support.services.polling import until


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def advisor(clock):
    return RoleAdvisor(clock)


def run(advisor, clock, *, long_share, long_gap_s=0.2, gap_s=0.02, seconds=200.0, engines=2):
    """Have each engine decode a stream, for a share of the time beside a long prompt."""
    end, times = clock.now + seconds, [EngineTimes(advisor, clock) for _ in range(engines)]
    streams = [engine.begin(10) for engine in times]
    for engine, stream in zip(times, streams, strict=True):
        engine.note_first_token(stream)
        engine.note_tokens(0, was_disturbed=False)
    while clock.now < end:
        prompts = [engine.begin(LONG_PROMPT_TOKENS) for engine in times] if long_share else []
        for part, gap, was_disturbed in ((long_share, long_gap_s, True), (1 - long_share, gap_s, False)):
            for _ in range(round(10 * part / gap)):
                clock.now += gap
                for engine in times:
                    engine.note_tokens(1, was_disturbed=was_disturbed)
            for engine, prompt in zip(times, prompts, strict=False):
                if was_disturbed:
                    engine.note_first_token(prompt)
                    engine.end(prompt)
    for engine, stream in zip(times, streams, strict=True):
        engine.end(stream)


def test_roles_are_advised_where_long_prompts_make_a_tail(advisor, clock):
    run(advisor, clock, long_share=0.2, engines=4)
    # Each of four engines has long prompts a fifth of the time, which is too much for one at 0.7, and a stream.
    assert advisor.advise(2).num_prefill == 0
    assert advisor.advise(4, max_num_seqs=2).num_prefill == 0  # 4.8 requests fill half of the rows of five engines
    advice = advisor.advise(4, max_num_seqs=8)
    assert advice.num_prefill == 2
    assert 0.19 < advice.token_gap_p99_s < 0.27
    assert 0.019 < advice.undisturbed_token_gap_p99_s < 0.027


def test_no_roles_are_advised_without_long_prompts(advisor, clock):
    run(advisor, clock, long_share=0.0)
    assert advisor.advise(8).num_prefill == 0


def test_no_roles_are_advised_where_long_prompts_delay_no_request(advisor, clock):
    run(advisor, clock, long_share=0.2, long_gap_s=0.13, gap_s=0.1, seconds=600.0)
    assert advisor.advise(8).num_prefill == 0


def test_few_tokens_are_no_reason(advisor, clock):
    run(advisor, clock, long_share=0.2, seconds=5.0, engines=1)
    assert advisor.advise(8).num_prefill == 0


def test_what_is_long_ago_is_forgotten(advisor, clock):
    run(advisor, clock, long_share=0.2)
    assert advisor.advise(8).num_prefill > 0
    clock.now += 3 * WINDOW_S
    assert advisor.advise(8) == (0, 0.0, 0.0, 0.0, 0.0)


def test_first_tokens_of_short_prompts_behind_long_ones_are_measured(advisor, clock):
    engine = EngineTimes(advisor, clock)
    for number in range(100):
        long = engine.begin(LONG_PROMPT_TOKENS) if number % 10 == 0 else None
        short = engine.begin(10)
        assert short.is_disturbed == (long is not None)
        clock.now += 1.0 if long else 0.05
        engine.note_first_token(short)
        if long:
            engine.note_first_token(long)
            engine.end(long)
        engine.end(short)
    advice = advisor.advise(8)
    assert 0.95 < advice.ttft_p99_s < 1.3
    assert 0.04 < advice.undisturbed_ttft_p99_s < 0.07


def test_a_long_prompt_that_ends_without_a_token_counts_no_more(advisor, clock):
    engine = EngineTimes(advisor, clock)
    prompt = engine.begin(LONG_PROMPT_TOKENS)
    assert engine.has_long_prompt
    engine.end(prompt)
    assert not engine.has_long_prompt


async def test_a_router_reports_its_advice_once_it_has_two_engines(tokenizer):
    clock = Clock()
    async with running(Service(tokenizer, 1, clock=clock)) as service:
        service.engines[0].say()
        clock.now += 60.0
        await asyncio.sleep(0.01)
        assert "rayinfer_advised_prefill_engines{" not in service.metrics.render().decode()
        service.add_engine()
        service.engines[1].say()
        clock.now += 60.0
        service.engines[1].say()
        await until(lambda: "rayinfer_advised_prefill_engines{" in service.metrics.render().decode())
        assert service.metric('rayinfer_advised_prefill_engines{model_name="m"}') == 0
