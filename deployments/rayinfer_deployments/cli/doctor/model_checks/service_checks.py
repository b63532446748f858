"""Checks through the HTTP application, as clients meet the model: repeated inputs, and inputs that are wrong."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_cache.cache_settings import PredictionCacheSettings
from rayinfer.prediction_cache.cached_predictor import CachedPredictor
from rayinfer.prediction_cache.router_cache import RouterCache
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.servers.app import build_app
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer_deployments.cli.doctor.model_checks.checked_model import CheckedModel
from rayinfer_deployments.cli.doctor.model_checks.results import CheckResult, failed, passed, warned
from rayinfer_deployments.cli.doctor.model_checks.wrong_requests import (
    MAY_BE_ANSWERED,
    NAME,
    HttpRequest,
    right_request,
    wrong_requests,
)

WITHIN_S = 120.0  # of every request
ENGINE_WAIT_S = 1.0  # once the engine has ended, no other comes
NUM_GOOD = 7  # requests beside each that is wrong
NUM_AT_ONCE = 16
SHOWN = 3
OF_EACH_REQUEST = ("id", "created", "usage")  # what differs from answer to answer


async def check_cache_and_errors(model: CheckedModel) -> list[CheckResult]:
    """Run both checks on one application, at the end: a thread takes the engine over."""
    async with _application(model) as client:
        return [await _check_cache(model, client), await _check_errors(model, client)]


@contextlib.asynccontextmanager
async def _application(model: CheckedModel) -> AsyncIterator[httpx.AsyncClient]:
    metrics, engine = ServiceMetrics("doctor"), AsyncEngine(model.engine)
    tokenizer = model.samples.tokenizer or Tokenizer(Backend(BPE()))
    template = ChatTemplate({}, {})
    if model.generates and model.folder is not None:
        template = ChatTemplate.from_folder(model.folder)
    dispatcher = Dispatcher(NAME, tokenizer, metrics, router_id="doctor", engine_wait_s=ENGINE_WAIT_S)
    engine.start()
    dispatcher.engines.add("engine", engine, engine.description)
    generator: Any = dispatcher
    if not model.generates and model.expectations.prediction_cache_bytes:
        settings = PredictionCacheSettings(max_bytes=model.expectations.prediction_cache_bytes)
        generator = CachedPredictor(NAME, dispatcher, RouterCache(settings, metrics).shared, metrics)
    served = ServedModel(name=NAME, generator=generator, tokenizer=tokenizer, chat_template=template, created=0)
    transport = httpx.ASGITransport(app=build_app({NAME: served}, metrics), raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://doctor") as client:
            yield client
    finally:
        await dispatcher.close()
        await engine.shutdown()


async def _check_cache(model: CheckedModel, client: httpx.AsyncClient) -> CheckResult:
    """Ask the same once more, then many times at once, and count what the engine computes."""
    name, request = "cache", right_request(model)
    if model.generates:
        return await _check_prefix_cache(model, client)
    first = await _ask(client, request)
    if first.status_code != 200:
        return failed(name, f"a good request has status {first.status_code}: {first.text[:80]}", "see error handling")
    steps = model.engine.stats.num_steps_total
    again = [await _ask(client, request), *await asyncio.gather(*(_ask(client, request) for _ in range(NUM_AT_ONCE)))]
    num_steps = model.engine.stats.num_steps_total - steps
    if any(_answer(each) != _answer(first) for each in again):
        return failed(name, "equal inputs have different answers", "see the check of eval mode")
    if num_steps == 0:
        return passed(name, f"{len(again)} repeated inputs were answered without the model")
    reason = f"{len(again)} repeated inputs took {num_steps} steps of the model"
    if model.registered is not None:
        remedy = "where equal inputs come often, keep results in the function"
        return warned(name, f"{reason}: results of code that may do anything are not kept", remedy)
    return warned(name, reason, "--prediction-cache-bytes above 0, here and with serve")


async def _check_prefix_cache(model: CheckedModel, client: httpx.AsyncClient) -> CheckResult:
    name, prompt = "cache", model.samples.long(1).prompt_token_ids
    body = json.dumps({"model": NAME, "prompt": prompt, "max_tokens": 4, "temperature": 0}).encode()
    request = HttpRequest("/v1/completions", body)
    first = await _ask(client, request)
    cached = model.engine.stats.cached_prompt_tokens_total
    second = await _ask(client, request)
    cached = model.engine.stats.cached_prompt_tokens_total - cached
    if first.status_code != 200 or _answer(first) != _answer(second):
        return failed(name, f"a repeated prompt got {first.text[:80]}, then {second.text[:80]}", "report this as a bug")
    if cached == 0:
        return warned(name, "a repeated prompt was computed again", "leave out --no-enable-prefix-caching")
    return passed(name, f"{cached} of {len(prompt)} tokens of a repeated prompt were found in the prefix cache")


async def _check_errors(model: CheckedModel, client: httpx.AsyncClient) -> CheckResult:
    """Send every wrong request among good ones: it must be refused, and the good ones answered as before."""
    name, good = "error handling", right_request(model)
    expected = _answer(await _ask(client, good))
    problems = []
    cases = wrong_requests(model)
    for case, wrong in cases.items():
        refused, *others = await asyncio.gather(_ask(client, wrong), *(_ask(client, good) for _ in range(NUM_GOOD)))
        if refused.status_code == 200 and case in MAY_BE_ANSWERED:
            pass
        elif not 400 <= refused.status_code < 500:
            problems.append(f"{case}: status {refused.status_code}, {refused.text[:80]}")
        elif not _is_error(refused):
            problems.append(f"{case}: no error in {refused.text[:80]}")
        if num_lost := sum(each.status_code != 200 or _answer(each) != expected for each in others):
            problems.append(f"{case}: {num_lost} of {NUM_GOOD} good requests beside it were lost")
    if problems:
        reason = f"{len(problems)} of {len(cases)} edge cases: {'; '.join(problems[:SHOWN])}"
        return failed(name, reason, "check inputs where the model is called, and raise a ValueError for what is wrong")
    return passed(name, f"{len(cases)} edge cases refused, {NUM_GOOD} good requests beside each answered as ever")


async def _ask(client: httpx.AsyncClient, request: HttpRequest) -> httpx.Response:
    async with asyncio.timeout(WITHIN_S):
        return await client.post(request.path, content=request.body, headers=dict(request.headers))


def _answer(response: httpx.Response) -> object:
    """Return an answer's numbers, without what differs from request to request."""
    answer = response.json()
    if response.status_code != 200:
        return response.text
    return {name: value for name, value in answer.items() if name not in OF_EACH_REQUEST}


def _is_error(response: httpx.Response) -> bool:
    """Whether the body names what is wrong, in any protocol's form."""
    with contextlib.suppress(ValueError):
        answer = response.json()
        return isinstance(answer, dict) and bool(answer.get("error"))
    return False
