"""A router over engines in this process, each with a machine's store of its own or one that they share."""

import asyncio
from contextlib import asynccontextmanager

from rayinfer.config import EngineConfig
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.kv_transfer.engine_transfers import EngineTransfers
from rayinfer.liveness import LivenessLimits
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.protocols import GenerationRequest
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer
from support.services.polling import until

SETTINGS = {
    "dtype": "float32",
    "block_size": 8,
    "num_kv_blocks": 256,
    "max_num_batched_tokens": 64,
    "kv_store_gib": 0.02,
    "kv_transfer": True,
}


class TransferFleet:
    """Engines behind a router."""

    def __init__(self, folder, roles=None):
        self.metrics = ServiceMetrics()
        self.router = Dispatcher(
            "m",
            Tokenizer.from_folder(folder),
            self.metrics,
            router_id="r",
            roles=roles,
            liveness=LivenessLimits(link_timeout_s=30.0),  # other processes may have the cores
        )
        self.folder, self.engines, self.transfers = folder, [], []
        self._number = 0

    def add(self, name, **settings):
        config = EngineConfig(model=str(self.folder), num_threads=1, pin_threads=False, **SETTINGS | settings)
        engine = AsyncEngine(stepped := build_engine(config, self.folder))
        engine.start()
        client, address = engine, None
        if stepped.stored_blocks is not None:
            transfers = EngineTransfers(engine, engine.description, stepped.stored_blocks, "127.0.0.1")
            client, address = transfers.engine, transfers.address
            self.transfers.append(transfers)
        self.engines.append(engine)
        self.router.engines.add(name, client, engine.description, address)
        return engine

    async def ask(self, prompt, max_tokens=8, **params):
        """Send a request; returns its tokens, cached tokens and texts."""
        self._number += 1
        settings = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True} | params
        request = GenerationRequest(
            request_id=str(self._number),
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(**settings),
        )
        outputs = {}
        async for output in self.router.generate(request):
            for choice in output.outputs:
                outputs.setdefault(choice.index, []).extend(choice.token_ids)
        return [outputs[index] for index in sorted(outputs)]

    async def settled(self, number):
        """Wait until an engine holds nothing, so that its store has all."""
        await until(lambda: self.engines[number].stats.kv_blocks_used == 0)

    def count(self, name):
        lines = self.metrics.render().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@asynccontextmanager
async def transfer_fleet(folder, roles=None):
    fleet = TransferFleet(folder, roles)
    try:
        yield fleet
    finally:
        await fleet.router.close()
        for transfers in fleet.transfers:
            await asyncio.to_thread(transfers.close)
        for engine in fleet.engines:
            await engine.shutdown()
