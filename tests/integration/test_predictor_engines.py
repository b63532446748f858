"""Predictor engines in processes of their own, which are killed under load: no item is lost, none is answered twice."""

import asyncio
import contextlib
import itertools
import os
import signal

import pytest
import ray
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from rayinfer.config import engine_config
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_outputs import output_numbers
from rayinfer.predictions import PredictionInput
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer_deployments.discovery.engine_address import EngineAddress
from rayinfer_deployments.engine.engine_actor import MAX_CONCURRENT_CALLS, EngineActor
from rayinfer_deployments.router.ray_engine_client import RayEngineClient
from support.services.polling import until
from support.tiny_models.tiny_encoders import VOCAB_SIZE, make_tiny_encoder, save_sentence_layout

NAMESPACE = "predictors"
NUM_CLIENTS = 16
WITHIN_S = 120.0
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def tiny_embedder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedder")
    make_tiny_encoder(folder, "Bert", "Model")
    save_sentence_layout(folder)
    return folder


class Engines:
    """Engine actors of one model, and a router's dispatcher over them."""

    def __init__(self, folder):
        self._config = engine_config(model=str(folder), num_threads=1, pin_threads=False)
        self._actors = {}
        self.dispatcher = Dispatcher("tiny", Tokenizer(Backend(BPE())), ServiceMetrics("r"), router_id="r")

    async def add(self):
        name = f"predictor-{next(_NUMBERS)}"
        make = ray.remote(num_cpus=0.1, max_concurrency=MAX_CONCURRENT_CALLS, max_restarts=0)(EngineActor)
        actor = self._actors[name] = make.options(name=name, namespace=NAMESPACE).remote(self._config, 2)
        description = await actor.start.remote()
        self.dispatcher.engines.add(
            name, RayEngineClient.at(EngineAddress(actor_name=name, namespace=NAMESPACE)), description
        )
        return name

    async def kill(self, name):
        os.kill(await self._actors.pop(name).ping.remote(), signal.SIGKILL)

    async def close(self):
        await self.dispatcher.close()
        for actor in self._actors.values():
            ray.kill(actor)


class Load:
    """Clients that send an item as soon as the one before is answered."""

    def __init__(self, dispatcher):
        self._dispatcher = dispatcher
        self._is_over = False
        self.num_answered = 0
        self._clients = [asyncio.create_task(self._run(number)) for number in range(NUM_CLIENTS)]

    async def end(self):
        self._is_over = True
        async with asyncio.timeout(WITHIN_S):
            return dict(item for part in await asyncio.gather(*self._clients) for item in part.items())

    async def _run(self, client):
        numbers, turn = {}, 0
        while not self._is_over:
            tokens = tuple(5 + (client * 31 + turn * 7 + place) % (VOCAB_SIZE - 5) for place in range(1 + turn % 20))
            numbers[tokens] = await self._embed(f"c{client}-{turn}", tokens)
            self.num_answered += 1
            turn += 1
        return numbers

    async def _embed(self, request_id, tokens):
        request = GenerationRequest(
            request_id=request_id,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=1),
            prediction=PredictionInput(task="embed"),
        )
        async with contextlib.aclosing(self._dispatcher.generate(request)) as outputs:
            (output,) = [output async for output in outputs]  # exactly one
        assert output.outputs[0].finish_reason == "stop", output
        return output_numbers(output.prediction).tolist()


async def _kill_under_load(folder, num_kills):
    engines = Engines(folder)
    try:
        names = list(await asyncio.gather(engines.add(), engines.add()))
        load = Load(engines.dispatcher)
        for kill in range(num_kills):
            before = load.num_answered
            await until(lambda wanted=before + 50: load.num_answered >= wanted)
            await engines.kill(names.pop(0))
            if kill + 1 < num_kills:
                names.append(await engines.add())
        before = load.num_answered
        await until(lambda: load.num_answered >= before + 50)
        return await load.end()
    finally:
        await engines.close()


@pytest.mark.parametrize("num_kills", [1, pytest.param(30, marks=pytest.mark.faults)])
async def test_no_item_is_lost_or_answered_twice_when_engines_are_killed(cluster, tiny_embedder, num_kills):
    answers = await _kill_under_load(tiny_embedder, num_kills)
    assert len(answers) > 50
    assert len({tuple(numbers) for numbers in answers.values()}) == len(answers)  # each its own
