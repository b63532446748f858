import asyncio
from dataclasses import replace

import pytest

from rayinfer.errors import EngineDead, InvalidParameter, NotReady, QueueFull
from rayinfer.outputs import EngineStats, Logprob, TraceEvent
from support.fakes.fake_engine_client import FakeEngineClient
from support.fakes.fake_service import Service, running
from support.services.polling import until


@pytest.fixture
async def service(tokenizer):
    async with running(Service(tokenizer, 1)) as service:
        yield service


@pytest.fixture
async def two_engines(tokenizer):
    async with running(Service(tokenizer, 2)) as service:
        yield service


async def test_a_request_is_answered_token_by_token(service):
    stream = await service.start(prompt="hello")
    service.say("a/0", "Y")
    assert (await anext(stream)).outputs[0].text == "Y"
    service.say("a/0", "Z", "length")
    last = await anext(stream)
    assert (last.finished, last.outputs[0].text, last.outputs[0].finish_reason) == (True, "Z", "length")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert service.engines[0].submitted[0].prompt_token_ids == service.tokenizer.encode("hello")
    assert service.engines[0].router_ids == ["router-1/1"]


async def test_a_finished_request_is_not_aborted(service):
    stream = await service.start()
    service.say("a/0", "", "stop")
    assert (await anext(stream)).finished
    await stream.aclose()
    await asyncio.sleep(0)
    assert service.engines[0].aborted == []


async def test_what_comes_while_a_client_is_slow_reaches_it_in_one_piece(service):
    stream = await service.start()
    for letter in "slowly":
        service.say("a/0", letter)
    service.say("a/0", "!", "length")
    await until(lambda: not service.engines[0].has_unread)
    output = await anext(stream)
    assert (output.outputs[0].text, len(output.outputs[0].token_ids), output.finished) == ("slowly!", 7, True)


async def test_all_choices_go_to_one_engine_and_come_back_under_their_index(two_engines):
    service = two_engines
    stream = service.open(n=3)
    reading = asyncio.ensure_future(anext(stream))
    await until(lambda: service.engines[0].submitted)
    assert service.engines[0].submitted_ids == ["a/0", "a/1", "a/2"]
    assert [(request.choice, request.sampling_params.n) for request in service.engines[0].submitted] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    client = service.engines[0]
    client.say(*(client.delta(f"a/{choice}", service.tokenizer.encode("abc"[choice]), "length") for choice in range(3)))
    output = await reading
    assert [(part.index, part.text) for part in output.outputs] == [(0, "a"), (1, "b"), (2, "c")]
    assert output.finished


async def test_requests_spread_over_the_engines(two_engines):
    streams = [two_engines.open(str(index)) for index in range(4)]
    reading = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await until(lambda: sum(len(engine.submitted) for engine in two_engines.engines) == 4)
    assert [len(engine.submitted) for engine in two_engines.engines] == [2, 2]
    for task in reading:
        task.cancel()


async def test_idle_engines_take_turns(two_engines):
    for index, engine in enumerate((0, 1, 0, 1)):
        stream = await two_engines.start(f"request-{index}", engine)
        await stream.aclose()


async def test_closing_a_stream_aborts_what_still_runs(service):
    stream = await service.start(n=2)
    service.say("a/1", "Y", "length")
    assert (await anext(stream)).outputs[0].finish_reason == "length"
    await stream.aclose()
    await until(lambda: service.engines[0].aborted)
    assert service.engines[0].aborted == ["a/0"]


async def test_closing_does_not_wait_for_the_engine(service):
    stream = await service.start()
    service.engines[0].abort_may_return.clear()
    await asyncio.wait_for(stream.aclose(), 1)
    service.engines[0].abort_may_return.set()
    await until(lambda: service.engines[0].aborted == ["a/0"])


async def test_a_cancelled_request_is_aborted_before_its_first_token_too(service):
    reading = asyncio.ensure_future(anext(service.open()))
    await until(lambda: service.engines[0].submitted)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await until(lambda: service.engines[0].aborted == ["a/0"])
    assert service.dispatcher.status().num_waiting == 0


async def test_a_stop_string_ends_the_stream_and_the_engines_work(service):
    stream = await service.start(stop=["END"])
    service.say("a/0", "yes EN")
    assert (await anext(stream)).outputs[0].text == "yes "
    service.say("a/0", "D and more")
    last = await anext(stream)
    assert (last.finished, last.outputs[0].text, last.outputs[0].finish_reason) == (True, "", "stop")
    assert last.outputs[0].stop_reason == "END"
    await until(lambda: service.engines[0].aborted == ["a/0"])


async def test_without_an_engine_requests_are_refused_and_only_the_log_names_it_and_its_end(service, caplog):
    service.engines[0].die(EngineDead("ActorDiedError: its process is gone"))
    await until(lambda: not service.dispatcher.engines.names)
    with pytest.raises(NotReady, match=r"^model 'm' cannot answer now: an engine is gone$"):
        await anext(service.open())
    status = service.dispatcher.status()
    assert not status.ready
    assert status.reason == "model 'm' cannot answer now: an engine is gone"
    assert [record.message for record in caplog.records if record.name == "rayinfer.routing.engine_set"] == [
        "engine engine-0 is gone: ActorDiedError: its process is gone"
    ]
    with pytest.raises(NotReady):
        service.dispatcher.describe()


async def test_a_request_that_an_engine_cannot_take_goes_to_another(two_engines):
    two_engines.engines[0].submit_error = EngineDead("gone")
    reading = asyncio.ensure_future(anext(two_engines.open()))
    await until(lambda: two_engines.engines[1].submitted_ids == ["a/0@1"])
    assert two_engines.dispatcher.engines.names == ["engine-1"]
    two_engines.say("a/0@1", "X", "length", engine=1)
    assert (await reading).finished


@pytest.mark.parametrize("params", [{"prompt_logprobs": 1}, {"max_tokens": 0}], ids=str)
async def test_a_model_that_reads_its_prompts_as_a_whole_does_not_score_them(tokenizer, params):
    async with running(Service(tokenizer, 0)) as service:
        service.engines.append(FakeEngineClient())
        description = replace(service.engines[0].description, scores_prompts=False)
        service.dispatcher.engines.add("engine-0", service.engines[0], description)
        with pytest.raises(
            InvalidParameter, match=f"{next(iter(params))} must be .*: this model does not score prompts"
        ):
            await anext(service.open(**params))
        assert service.engines[0].submitted == []


async def test_settings_that_may_leave_no_token_are_refused_before_any_work(service):
    with pytest.raises(InvalidParameter, match="allowed_token_ids must leave a token"):
        await anext(service.open("a", allowed_token_ids=[3], min_tokens=1))
    with pytest.raises(InvalidParameter, match="allowed_token_ids must leave a token"):
        await anext(service.open("b", allowed_token_ids=[5], bad_token_sequences=[[9, 5]]))
    assert service.engines[0].submitted == []


async def test_too_many_waiting_requests_are_refused_until_one_has_its_first_token(tokenizer):
    async with running(Service(tokenizer, 1, max_waiting_requests=1)) as service:
        waiting = asyncio.ensure_future(anext(service.open("a")))
        await until(lambda: service.engines[0].submitted)
        with pytest.raises(QueueFull):
            await anext(service.open("b"))
        service.say("a/0", "X")
        await waiting
        stream = await service.start("c")
        await stream.aclose()


async def test_an_admission_slot_is_freed_by_a_request_that_never_begins(tokenizer):
    async with running(Service(tokenizer, 1, max_waiting_requests=1)) as service:
        stream = service.open("a")
        assert service.dispatcher.overload() is not None
        with pytest.raises(QueueFull):
            service.open("b")
        await stream.aclose()
        del stream
        assert service.dispatcher.overload() is None


async def test_a_request_out_of_time_ends_with_timeout_and_is_aborted(service):
    stream = await service.start(timeout_s=0.05)
    last = await anext(stream)
    assert (last.finished, last.outputs[0].finish_reason) == (True, "timeout")
    await until(lambda: service.engines[0].aborted == ["a/0"])


async def test_a_stream_whose_tokens_make_no_sense_harms_no_other(service):
    broken, healthy = await service.start("a"), await service.start("b")
    client = service.engines[0]
    client.say(client.delta("a/0", [5])._replace(start_pos=50), client.delta("b/0", service.tokenizer.encode("Y")))
    with pytest.raises(RuntimeError, match="tokens lost"):
        await anext(broken)
    assert (await anext(healthy)).outputs[0].text == "Y"
    await until(lambda: client.aborted == ["a/0"])
    await healthy.aclose()
    assert service.metric('vllm:request_success_total{finished_reason="error"') == 1.0


async def test_the_status_of_a_draining_engine_does_not_name_it(service):
    stream = await service.start()
    service.dispatcher.engines.drain("engine-0")
    assert service.dispatcher.status().reason == "model 'm' cannot answer now: an engine is shutting down"
    await stream.aclose()


async def test_an_idle_engine_that_drains_is_let_go_at_once(service):
    service.dispatcher.engines.drain("engine-0")
    assert service.dispatcher.engines.names == []
    with pytest.raises(NotReady) as refusal:
        await anext(service.open())
    assert "engine-0" not in refusal.value.message


async def test_an_engine_added_again_gets_a_new_router_id(service):
    service.dispatcher.engines.remove("engine-0", "its line was cut")
    service.dispatcher.engines.add("engine-0", service.engines[0], service.engines[0].description)
    await (await service.start()).aclose()
    assert service.engines[0].router_ids == ["router-1/2"]


async def test_the_description_carries_the_served_name_and_the_tightest_limit(two_engines):
    narrow = FakeEngineClient(max_model_len=50)
    two_engines.dispatcher.engines.add("narrow", narrow, narrow.description)
    description = two_engines.dispatcher.describe()
    assert (description.name, description.max_model_len) == ("m", 50)


async def test_the_status_shows_every_engines_latest_figures(service):
    service.engines[0].say(stats=EngineStats(num_running=7, kv_blocks_used=3, kv_blocks_total=10))
    await until(lambda: service.dispatcher.status().engines["engine-0"].num_running == 7)
    status = service.dispatcher.status()
    assert status.ready
    assert status.descriptions == {"engine-0": service.engines[0].description}
    assert service.metric('rayinfer_kv_blocks_used{engine="engine-0"') == 3.0


async def test_an_engines_pool_is_in_the_metrics_from_the_moment_it_joins_until_it_goes(service):
    assert service.metric('rayinfer_kv_blocks_total{engine="engine-0"') == 10.0
    service.dispatcher.engines.remove("engine-0", "test")
    assert 'engine="engine-0"' not in service.metrics.render().decode()


async def test_tokens_and_endings_are_counted_once(service):
    stream = await service.start("a", prompt="hello")
    service.say("a/0", "YZ", "length")
    await anext(stream)
    await (await service.start("b")).aclose()
    assert service.metric('vllm:generation_tokens_total{model_name="m"}') == 4.0
    assert service.metric('vllm:prompt_tokens_total{model_name="m"}') == 10.0
    assert service.metric('vllm:time_to_first_token_seconds_count{model_name="m"}') == 2.0
    assert service.metric('vllm:request_success_total{finished_reason="length"') == 1.0
    assert service.metric('vllm:request_success_total{finished_reason="abort"') == 1.0


async def test_tokens_that_arrive_after_a_client_left_are_ignored(service):
    await (await service.start("a")).aclose()
    service.say("a/0", "late")
    stream = await service.start("b")
    service.say("b/0", "fine", "length")
    assert (await anext(stream)).outputs[0].text == "fine"


async def test_a_request_without_a_seed_gets_one_that_all_its_choices_share_and_a_given_seed_stays(service):
    await service.start("drawn", n=2)
    await service.start("given", seed=7)
    await service.start("other")
    seeds = {request.request_id: request.sampling_params.seed for request in service.engines[0].submitted}
    assert seeds["drawn/0"] == seeds["drawn/1"] is not None
    assert seeds["given/0"] == 7
    assert seeds["other/0"] not in (None, seeds["drawn/0"])


async def test_log_probabilities_of_prompt_and_answer_reach_the_client(service):
    stream = service.open(n=2, prompt_logprobs=0, logprobs=1)
    reading = asyncio.ensure_future(anext(stream))
    client, places = service.engines[0], [{88: Logprob(-1.5, 1)}]
    await until(lambda: client.submitted)
    client.say(client.delta("a/1", [88], logprobs=places))
    client.say(
        client.delta("a/0", [88], "length", logprobs=places, prompt_logprobs=[None, *places * 4]),
        client.delta("a/1", [89], "length", logprobs=places),
    )
    output = await reading
    if not output.finished:
        more = await anext(stream)
        assert more.prompt_logprobs is None
        output.outputs += more.outputs
    assert output.prompt_logprobs == [None, *places * 4]
    of_second = [place for part in output.outputs if part.index == 1 for place in part.logprobs]
    assert of_second == places * 2


async def test_what_the_first_choice_computed_does_not_count_as_cached_for_the_others(service):
    reading = asyncio.ensure_future(anext(service.open(n=2)))
    client = service.engines[0]
    await until(lambda: client.submitted)
    client.say(client.delta("a/1", [88], num_cached_tokens=5), client.delta("a/0", [88], num_cached_tokens=0))
    assert (await reading).num_cached_tokens == 0


async def test_what_waits_for_a_slow_client_keeps_the_prompts_log_probabilities(service):
    stream = service.open(prompt_logprobs=0)
    reading = asyncio.ensure_future(anext(stream))
    client = service.engines[0]
    await until(lambda: client.submitted)
    client.say(
        client.delta("a/0", [88], prompt_logprobs=[None]),
        client.delta("a/0", [88]),
        client.delta("a/0", [88], "length"),
    )
    output = await reading
    assert (output.prompt_logprobs, output.outputs[0].token_ids) == ([None], [88, 88, 88])


async def test_a_traced_requests_way_is_recorded_with_what_the_engine_says(service):
    stream = await service.start(trace=True, n=2)
    assert all(request.trace for request in service.engines[0].submitted)
    where = {"engine": "engine-0", "why": "only", "cached_tokens": 0, "attempt": 0, "weights_version": 0}
    for choice, (name, details) in enumerate(service.trace()):
        assert 0 <= details.pop("waited_s") < 60
        assert (name, details) == ("dispatched", {"prompt": None, "choice": choice} | where)
    client = service.engines[0]
    events = [TraceEvent("queued", 2e9, {}), TraceEvent("finished", 2.1e9, {"reason": "length"})]
    client.say(client.delta("a/0", [], "length", trace=events), client.delta("a/1", [], "stop", trace=events))
    assert (await anext(stream)).finished
    assert service.trace()[2:] == [
        ("finished", {"prompt": None, "choice": 0, "reason": "length", "output_tokens": 1}),
        ("finished", {"prompt": None, "choice": 1, "reason": "stop", "output_tokens": 0}),
        ("queued", {"prompt": None, "choice": 0}),
        ("queued", {"prompt": None, "choice": 1}),
    ]


async def test_what_the_engine_says_after_a_stop_string_still_enters_the_trace(service):
    stream = await service.start(trace=True, stop=["END"])
    service.say("a/0", "END")
    assert (await anext(stream)).finished
    client = service.engines[0]
    await until(lambda: client.aborted)
    client.say(client.delta("a/0", [], "abort", trace=[TraceEvent("first_token", 2e9, {})]))
    await until(lambda: len(service.trace()) == 3)
    assert [(name, details.get("reason")) for name, details in service.trace()] == [
        ("dispatched", None),
        ("finished", "stop"),
        ("first_token", None),
    ]


async def test_a_client_that_leaves_ends_its_trace(service):
    stream = await service.start(trace=True)
    await stream.aclose()
    assert service.trace()[-1] == ("finished", {"prompt": None, "choice": 0, "reason": "abort", "output_tokens": 1})


async def test_a_request_that_is_not_traced_leaves_no_trace(service):
    stream = await service.start()
    service.say("a/0", "", "stop")
    await anext(stream)
    assert not service.engines[0].submitted[0].trace
    assert service.traces.find("a") == []


async def test_tokens_that_the_model_never_generates_are_refused_as_the_only_ones(tokenizer):
    async with running(Service(tokenizer, 0)) as service:
        add_described(service, bad_token_sequences=((7,),))
        with pytest.raises(InvalidParameter, match=r"got \[7\]; the model never generates \[\[7\]\]"):
            service.open(allowed_token_ids=[7])
        service.open("b", allowed_token_ids=[7, 8])  # is not refused


def add_described(service, **description):
    """Add an engine with other properties than usual."""
    engine = FakeEngineClient()
    service.engines.append(engine)
    service.dispatcher.engines.add("engine-0", engine, replace(engine.description, **description))


async def test_the_deadline_holds_while_the_request_is_on_its_way_to_an_engine(service):
    engine = service.engines[0]
    engine.submit_may_arrive.clear()
    async with asyncio.timeout(2.0):
        output = await anext(service.open(timeout_s=0.05))
    assert output.outputs[0].finish_reason == "timeout"
    assert engine.submitted == []
    engine.submit_may_arrive.set()
    await until(lambda: engine.aborted == ["a/0"])
    assert service.dispatcher.status().num_waiting == 0
