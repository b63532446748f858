"""A random course of events around a router: clients come and go while engines join, leave and die."""

import asyncio
import contextlib
import random

from rayinfer.errors import EngineDead, NotReady
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import Credits
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.limits import RouterLimits
from rayinfer.sampling_params import SamplingParams
from rayinfer.transport.engine_connection import EngineConnection
from rayinfer.transport.engine_server import EngineServer
from support.fakes.counting_engine import CountingEngine, expected_token

NUM_MOVES = 40
HOST = "127.0.0.1"


class Client:
    """Client of one answer, which records its end."""

    def __init__(self, dispatcher, number, n, max_tokens, subject, **settings):
        prompt = [ord(letter) for letter in f"{subject * 20} {number}"]
        params = SamplingParams(max_tokens=max_tokens, n=n, ignore_eos=True)
        request = GenerationRequest(
            request_id=f"r{number}", prompt_token_ids=prompt, sampling_params=params, **settings
        )
        self.whole = [expected_token(prompt, position) for position in range(max_tokens)]
        self.tokens = {choice: [] for choice in range(n)}
        self.ends = []
        self.reading = asyncio.create_task(self._read(dispatcher, request))

    async def _read(self, dispatcher, request):
        try:
            async with contextlib.aclosing(dispatcher.generate(request)) as outputs:
                async for output in outputs:
                    for part in output.outputs:
                        self.tokens[part.index] += part.token_ids
                    if output.finished:
                        self.ends.append("finished")
        except asyncio.CancelledError:
            self.ends.append("left")
        except (EngineDead, NotReady) as error:
            self.ends.append(type(error).__name__)

    def check(self):
        (end,) = self.ends or ["never began"] * self.reading.cancelled()
        for tokens in self.tokens.values():
            assert tokens == (self.whole if end == "finished" else self.whole[: len(tokens)])
        return end


class Schedule:
    """One random course of events."""

    def __init__(self, seed, tokenizer):
        self.draw = random.Random(seed)
        self.metrics = ServiceMetrics()
        self.dispatcher = Dispatcher("m", tokenizer, self.metrics, router_id="router")
        self.credits = Credits(
            num_requests=self.draw.choice([0, 1, 2, 4]), num_prefill_tokens=self.draw.choice([0, 64])
        )
        self.engines, self.clients, self.num_engines, self.longest_queue = {}, [], 0, 0

    async def run(self):
        self.join()
        for _ in range(NUM_MOVES):
            self.draw.choices(
                [self.join, self.kill, self.leave, self.come, self.go, self.step], weights=[2, 1, 1, 4, 1, 8]
            )[0]()
            await self.pause()
        while not all(client.reading.done() for client in self.clients):
            if not self.dispatcher.engines.available():
                self.join()
            self.step()
            await self.breathe()
        for _ in range(50):  # aborts are on their way
            await self.breathe()
        assert not [engine.running for engine in self.engines.values() if engine.running], "somebody still runs"
        assert all(link.num_in_flight == 0 for link in self.dispatcher.engines.links.values())
        assert self.dispatcher.status().num_waiting == len(self.dispatcher._queue) == 0
        await self.dispatcher.close()
        return [client.check() for client in self.clients]

    async def pause(self):
        for _ in range(self.draw.randrange(6)):
            await asyncio.sleep(0)

    async def breathe(self):
        await asyncio.sleep(0)

    def join(self):
        self.num_engines += 1
        name, engine = f"engine-{self.num_engines}", CountingEngine(self.credits)
        self.engines[name] = engine
        self.dispatcher.engines.add(name, self.client_of(engine), engine.description)

    def client_of(self, engine):
        return engine

    def kill(self):
        if self.engines:
            self.end(self.engines.pop(self.draw.choice(sorted(self.engines))))

    def end(self, engine):
        engine.kill()

    def leave(self):
        if self.engines:
            self.dispatcher.engines.drain(self.draw.choice(sorted(self.engines)))

    def come(self):
        n, max_tokens = self.draw.choice([1, 1, 3]), self.draw.randrange(1, 12)
        settings = {
            "priority": self.draw.choice([0, 0, -3, 4]),
            "tenant": self.draw.choice(["", "a", "b"]),
            "subject": self.draw.choice("xyz"),
        }
        self.clients.append(Client(self.dispatcher, len(self.clients), n, max_tokens, **settings))
        self.longest_queue = max(self.longest_queue, len(self.dispatcher._queue))

    def go(self):
        if self.clients:
            self.draw.choice(self.clients).reading.cancel()

    def step(self):
        for engine in self.engines.values():
            engine.step(self.draw.choice([1, 1, 2]))


class ScheduleOverLines(Schedule):
    """The same with a socket between the router and each engine, and further ways to die."""

    def __init__(self, seed, tokenizer):
        super().__init__(seed, tokenizer)
        self.dispatcher.change_limits(RouterLimits(stream_interval=self.draw.choice([1, 1, 3, 64])))
        self.servers = {}  # by engine
        self.closing = []

    async def run(self):
        ends = await super().run()
        await asyncio.gather(*self.closing, *(server.close() for server in self.servers.values()))
        return ends

    async def pause(self):
        await super().pause()
        if self.draw.random() < 0.3:
            await asyncio.sleep(0.001)

    async def breathe(self):
        await asyncio.sleep(0.0005)

    def client_of(self, engine):
        server = self.servers[engine] = EngineServer(engine)
        delay_s = self.draw.choice([0, 0, 0.002])

        async def find():
            await asyncio.sleep(delay_s)
            if engine.is_dead:
                raise EngineDead("gone")
            return await server.start(HOST)

        return EngineConnection(find)

    def end(self, engine):
        if self.draw.random() < 0.5:
            engine.kill()  # and says so
            return
        engine.is_dead = True
        engine.running.clear()
        self.closing.append(asyncio.ensure_future(self.servers[engine].close()))  # and says nothing
