"""Several prompts of one request, before a generator whose queue is short."""

import asyncio
from contextlib import aclosing

import pytest

from rayinfer.errors import InvalidParameter, NotReady, QueueFull
from rayinfer.outputs import CompletionOutput, RequestOutput
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.prompt_outputs import PromptLists, generate_outputs
from support.fakes.fake_generator import FakeGenerator


class NarrowGenerator:
    """Lets `most` requests wait for their first output; what comes after that takes no room."""

    def __init__(self, most, *, num_others=0, refuses=()):
        self.most, self.num_waiting, self.refuses = most, num_others, refuses
        self.begun, self.timeouts = [], []

    def generate(self, request):
        if request.request_id in self.refuses:
            raise InvalidParameter("not this one")
        if self.num_waiting >= self.most:
            raise QueueFull("full")
        self.num_waiting += 1
        self.begun.append(request.request_id)
        self.timeouts.append(request.timeout_s)
        return self.answer(request)

    async def answer(self, request):
        for number in range(3):
            await asyncio.sleep(0)
            if number == 0:
                self.num_waiting -= 1
            text = CompletionOutput(index=0, text=request.request_id, token_ids=[number], finish_reason=None)
            yield RequestOutput(
                request_id=request.request_id, prompt_token_ids=[1], outputs=[text], finished=number == 2
            )


def requests(count, **settings):
    return [
        GenerationRequest(request_id=str(i), prompt_token_ids=[1], sampling_params=SamplingParams(), **settings)
        for i in range(count)
    ]


async def prompts_of(outputs):
    async with aclosing(outputs):
        return [output.prompt async for output in outputs]


@pytest.mark.parametrize("most", [1, 2, 7, 100])
async def test_more_prompts_than_may_wait_begin_one_after_the_other(most):
    generator = NarrowGenerator(most)
    prompts = await prompts_of(generate_outputs(generator, requests(21)))
    assert sorted(prompts) == sorted([*range(21)] * 3)
    assert generator.begun == [str(i) for i in range(21)]


async def test_a_first_prompt_that_finds_the_queue_full_refuses_the_request():
    with pytest.raises(QueueFull):
        generate_outputs(NarrowGenerator(2, num_others=2), requests(3))


async def test_any_other_refusal_is_raised_at_once():
    with pytest.raises(InvalidParameter):
        generate_outputs(NarrowGenerator(5, refuses=("2",)), requests(3))


async def test_waiting_prompts_fail_when_none_of_the_batch_is_left_running():
    generator = NarrowGenerator(1)
    outputs = generate_outputs(generator, requests(2))
    generator.num_waiting = 100  # others have come meanwhile, and stay
    with pytest.raises(QueueFull):
        await prompts_of(outputs)


async def test_the_time_of_a_prompt_runs_while_it_waits_for_a_place():
    generator = NarrowGenerator(1)
    outputs = generate_outputs(generator, requests(2, timeout_s=30.0))
    await asyncio.sleep(0.05)
    await prompts_of(outputs)
    assert generator.timeouts[0] == 30.0
    assert 0.0 < generator.timeouts[1] <= 29.95


class CountingGenerator(NarrowGenerator):
    """Counts the prompts that start in each iteration of the event loop."""

    def __init__(self):
        super().__init__(1000)
        self.starts = []

    async def answer(self, request):
        self.starts[-1] += 1
        async for output in super().answer(request):
            yield output

    async def count_iterations(self) -> None:
        while True:
            self.starts.append(0)
            await asyncio.sleep(0)


@pytest.mark.parametrize(("num_lists", "most"), [(1, 33), (6, 80)])
async def test_only_some_of_many_prompts_begin_in_one_iteration_of_the_event_loop(num_lists, most):
    """All at once would hold up other streams for a tenth of a second, and so would those of several clients."""
    generator, lists = CountingGenerator(), PromptLists()
    counting = asyncio.create_task(generator.count_iterations())
    await asyncio.sleep(0)
    running = [prompts_of(generate_outputs(generator, requests(200), lists)) for _ in range(num_lists)]
    await asyncio.gather(*running)
    counting.cancel()
    assert sum(generator.starts) == 200 * num_lists
    assert max(generator.starts) <= most
    assert lists.max_ahead() == 32


async def test_a_request_that_has_ended_takes_no_share_of_the_others():
    lists = PromptLists()
    outputs = [generate_outputs(NarrowGenerator(1), requests(9), lists) for _ in range(3)]
    assert lists.max_ahead() == 32 // 3
    await anext(outputs[0])
    await outputs[0].aclose()
    assert lists.max_ahead() == 32 // 2
    del outputs[1:]  # which never began
    assert lists.max_ahead() == 32


async def test_a_request_that_was_refused_takes_none_either_while_its_error_lives():
    lists = PromptLists()
    with pytest.raises(InvalidParameter) as at_once:
        generate_outputs(NarrowGenerator(5, refuses=("2",)), requests(9), lists)
    with pytest.raises(InvalidParameter) as later:
        await prompts_of(generate_outputs(NarrowGenerator(1, refuses=("2",)), requests(9), lists))
    other = generate_outputs(NarrowGenerator(1), requests(9), lists)
    assert lists.max_ahead() == 32, (at_once, later, other)


class Restarting(FakeGenerator):
    """A generator whose only engine is gone for some calls after the first."""

    def __init__(self, num_refusals: int) -> None:
        super().__init__()
        self.num_refusals = num_refusals

    def generate(self, request: GenerationRequest):
        if self.requests and self.num_refusals:
            self.num_refusals -= 1
            raise NotReady("an engine is gone")
        return super().generate(request)


async def test_the_rest_of_a_request_that_has_begun_waits_for_an_engine():
    generator = Restarting(num_refusals=4)
    lists = PromptLists(num_ahead=1)
    requests = [
        GenerationRequest(request_id=name, prompt_token_ids=[1], sampling_params=SamplingParams(max_tokens=1))
        for name in "abc"
    ]
    async with asyncio.timeout(5):
        ended = {each.prompt async for each in generate_outputs(generator, requests, lists) if each.output.finished}
    assert (ended, generator.num_refusals) == ({0, 1, 2}, 0)
