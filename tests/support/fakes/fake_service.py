"""A dispatcher over fake engines, and its clients."""

import asyncio
import contextlib
import time
from dataclasses import replace

from rayinfer.liveness import LivenessLimits
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.limits import RouterLimits
from rayinfer.sampling_params import SamplingParams
from rayinfer.traces.trace_store import TraceStore
from support.fakes.fake_engine_client import FakeEngineClient
from support.services.polling import until


class Service:
    """A dispatcher with fake engines, and a client's view of it."""

    def __init__(
        self,
        tokenizer,
        num_engines,
        max_waiting_requests=100,
        engine_wait_s=5.0,
        first_tokens=None,
        clock=time.monotonic,
        **liveness,
    ):
        self.tokenizer = tokenizer
        self.metrics = ServiceMetrics()
        self.traces = TraceStore()
        self.dispatcher = Dispatcher(
            "m",
            tokenizer,
            self.metrics,
            router_id="router-1",
            limits=RouterLimits(max_waiting_requests=max_waiting_requests),
            traces=self.traces,
            engine_wait_s=engine_wait_s,
            first_tokens=first_tokens,
            clock=clock,
            liveness=LivenessLimits(**liveness),
        )
        self.engines = []
        for _ in range(num_engines):
            self.add_engine()

    def add_engine(self, **of_description):
        """Let one more engine join; returns its number."""
        engine = FakeEngineClient()
        engine.description = replace(engine.description, **of_description)
        self.engines.append(engine)
        self.dispatcher.engines.add(f"engine-{len(self.engines) - 1}", engine, engine.description)
        return len(self.engines) - 1

    def open(
        self, request_id="a", prompt="hello", timeout_s=None, trace=False, priority=0, tenant="", adapter="", **params
    ):
        request = GenerationRequest(
            request_id=request_id,
            prompt_token_ids=self.tokenizer.encode(prompt),
            sampling_params=SamplingParams(**params),
            timeout_s=timeout_s,
            priority=priority,
            tenant=tenant,
            trace=trace,
            adapter=f"{adapter}@digest" if adapter else None,
            adapter_folder=f"/adapters/{adapter}" if adapter else "",
        )
        if trace:
            self.traces.open(
                name=request_id, response_id=f"cmpl-{request_id}", model="m", request_ids=[request_id], received_s=0.0
            )
        return self.dispatcher.generate(request)

    async def start(self, request_id="a", engine=0, **settings):
        """Open a stream and read its first token; returns the stream."""
        stream = self.open(request_id, **settings)
        reading = asyncio.ensure_future(anext(stream))
        client = self.engines[engine]
        await until(lambda: f"{request_id}/0" in client.submitted_ids)
        self.say(f"{request_id}/0", "X", engine=engine)
        assert (await reading).outputs[0].text == "X"
        return stream

    def say(self, request_id, text="", finish_reason=None, engine=0):
        client = self.engines[engine]
        client.say(client.delta(request_id, self.tokenizer.encode(text), finish_reason))

    def trace(self, request_id="a"):
        """Return what is known of a request by now, without the prompt's number."""
        (kept,) = self.traces.find(request_id)
        return [(event.name, event.details | {"prompt": None}) for event in kept.trace.in_order()][1:]

    def metric(self, line):
        lines = self.metrics.render().decode().splitlines()
        return next(float(found.rpartition(" ")[2]) for found in lines if found.startswith(line))


@contextlib.asynccontextmanager
async def running(service):
    yield service
    await service.dispatcher.close()
    assert not any(engine.is_listened_to for engine in service.engines)
