"""A loaded model that is checked: its engine, its modules, and requests that it can compute."""

import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch

from rayinfer.config import EngineConfig
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.stepped_engine import SteppedEngine
from rayinfer.errors import RayinferError
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer.outputs import TokenDelta
from rayinfer.predictors.build_engine import build_predictor_engine
from rayinfer.predictors.registered import RegisteredPredictor, find_registered_predictor
from rayinfer.protocols import GenerationRequest
from rayinfer_deployments.cli.doctor.model_checks.sample_requests import SampleRequests
from rayinfer_deployments.engine.engine_actor import warm_up_request

COMPUTE_TIMEOUT_S = 300.0
POLL_S = 0.0005


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectations:
    """Settings that the model will be served with."""

    request_timeout_s: float | None = None
    memory_limit_bytes: int | None = None  # None: of the container, or what is free
    prediction_cache_bytes: int = 0


class Computed(NamedTuple):
    """Ends of some requests, in their order, and the time that all took."""

    deltas: list[TokenDelta]  # of each, the last one; of models that generate with all tokens
    seconds: float


@dataclass(kw_only=True, slots=True)
class CheckedModel:
    """A model in this process, as an engine's process has it."""

    config: EngineConfig
    folder: Path | None  # None: a registered predictor
    registered: RegisteredPredictor | None
    engine: SteppedEngine
    samples: SampleRequests
    expectations: Expectations
    modules: list[torch.nn.Module] = field(default_factory=list)  # that were built with it
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def generates(self) -> bool:
        """Whether it is a model that generates text."""
        return self.engine.description.predictor is None

    def compute(self, requests: Sequence[GenerationRequest]) -> Computed:
        """Compute requests by the engine's steps, all at once; raises RayinferError for one without an end.

        Cached prefixes are shared by those that have a salt.
        """
        named = []
        for each in requests:
            name = f"check-{next(self._numbers)}/0"
            named.append(replace(each, request_id=name, cache_salt=each.cache_salt or name))
        ends: dict[str, TokenDelta] = {}
        tokens: dict[str, list[int]] = {each.request_id: [] for each in named}
        started = time.perf_counter()
        for each in named:
            self.engine.add_request(each)
        while len(ends) < len(named):
            deltas = self.engine.step()
            for delta in deltas:
                tokens[delta.request_id] += delta.token_ids
                if delta.finish_reason is not None:
                    ends[delta.request_id] = delta
            if time.perf_counter() - started > COMPUTE_TIMEOUT_S:
                raise RayinferError(f"the model has not computed its inputs within {COMPUTE_TIMEOUT_S:.0f} s")
            if not deltas:
                time.sleep(POLL_S)
        seconds = time.perf_counter() - started
        return Computed([ends[name]._replace(token_ids=tokens[name]) for name in tokens], seconds)

    def seconds_of(self, requests: Sequence[GenerationRequest], times: int = 3) -> float:
        """Return the time in which the engine computes them, the shortest of some runs."""
        return min(self.compute(requests).seconds for _ in range(times))


@contextmanager
def open_model(config: EngineConfig, expectations: Expectations) -> Iterator[CheckedModel]:
    """Load a model and put its engine around it, as `serve` would; raises ConfigError and ModelLoadError."""
    registered = find_registered_predictor(config.model)
    folder = None if registered is not None else resolve_model(config.model)
    known = {id(module): module for module in _living_modules()}
    if folder is not None and predictor_kind(folder) is None:
        engine: SteppedEngine = build_engine(config, folder)
    else:
        engine = build_predictor_engine(config, folder)
    try:
        model = CheckedModel(
            config=config,
            folder=folder,
            registered=registered,
            engine=engine,
            samples=SampleRequests(engine.description, folder, registered),
            expectations=expectations,
            modules=[module for module in _living_modules() if id(module) not in known],
        )
        if (request := warm_up_request(engine.description)) is not None:
            model.compute([request])  # as engines do before they are ready
        yield model
    finally:
        engine.exit()


def _living_modules() -> list[torch.nn.Module]:
    """List the models of this process, and their parts: engines have no common way to name theirs, functions none."""
    gc.collect()
    found = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    # Libraries keep activations in tables, which are part of nothing.
    models = [each for each in found if next(each.parameters(), None) is not None]
    return list({id(part): part for each in models for part in each.modules()}.values())
