"""The client for asyncio."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from rayinfer.client.request_bodies import OutputReader, Prompt, RequestOptions, path_and_body
from rayinfer.client.response_errors import error_of_response, rebuilt_error
from rayinfer.errors import RequestFailed, RequestTimedOut, Unavailable
from rayinfer.outputs import RequestOutput
from rayinfer.sampling_params import SamplingParams

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 5.0
MAX_RETRY_WAIT_S = 120.0  # a service that asks for more gets no retry
FIRST_BACKOFF_S = 0.5


class AsyncInferenceClient:
    """Client of one service; use it in one event loop, and as a context manager or with `close`.

    Requests that find the service full or starting are sent again after the time that it asks for, `max_retries` times;
    so are those that cannot connect. Errors are those of `rayinfer.errors`.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,  # without anything from the service
        max_retries: int = 2,
        max_connections: int = 1000,  # further requests wait for one
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._max_retries = max_retries
        self._http = httpx.AsyncClient(
            base_url=base_url.rstrip("/").removesuffix("/v1"),  # as other clients of OpenAI's paths take it
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s), pool=None),
            limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
            transport=transport,
        )

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> asyncio.Task[RequestOutput]:
        """Send a request; returns a future of its whole output. Without `params` the model's defaults apply."""
        return asyncio.get_running_loop().create_task(self.generate(prompt, params, **options))

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> RequestOutput:
        """Send a request and wait for its whole output; cancellation ends the generation."""
        path, body = path_and_body(prompt, params, options, stream=False)
        async with self._response("POST", path, json=body) as response:
            reader = OutputReader(params.n if params else 1)
            output = reader.read(_decoded(await response.aread()))
        if not output.finished:
            raise RequestFailed("the response ended before all choices had")
        return output

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Send a request and yield what is new as it comes; closing the generator ends the generation.

        The last output is `finished`, and has the number of cached tokens; it may bring no text.
        """
        path, body = path_and_body(prompt, params, options, stream=True)
        reader, held = OutputReader(params.n if params else 1), None
        async with self._response("POST", path, json=body) as response:
            async for chunk in _events(response):
                output = reader.read(chunk)
                if output.finished:
                    held = _joined(held, output)  # the usage follows
                elif any(each.text or each.token_ids or each.finish_reason for each in output.outputs):
                    yield output
        if held is None:
            raise RequestFailed("the stream ended before all choices had")
        yield held

    def abort(self, future: asyncio.Future[RequestOutput]) -> None:
        """End a submitted request in the service, too; its future is cancelled."""
        future.cancel()

    async def pause(self, model: str | None = None) -> None:
        """Have the engines of a model compute nothing; requests stay (with `--enable-engine-control`)."""
        await self._call("POST", "/pause", model)

    async def resume(self, model: str | None = None) -> None:
        """Continue after `pause`."""
        await self._call("POST", "/resume", model)

    async def is_paused(self, model: str | None = None) -> bool:
        """Return whether no engine of a model computes anything (with `--enable-engine-control`)."""
        return bool((await self._call("GET", "/is_paused", model))["is_paused"])

    async def models(self) -> list[str]:
        """List the names of the models."""
        return [card["id"] for card in (await self._call("GET", "/v1/models"))["data"]]

    async def close(self) -> None:
        """Close the connections, which ends requests that are in flight."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: str, path: str, model: str | None = None) -> Any:
        async with self._response(method, path, params={} if model is None else {"model": model}) as response:
            return _decoded(await response.aread())

    @asynccontextmanager
    async def _response(self, method: str, path: str, **content: Any) -> AsyncIterator[httpx.Response]:
        """Send a request until it is answered, and yield the response whose body is to be read."""
        async with AsyncExitStack() as stack:
            try:
                yield await self._send_with_retries(stack, method, path, content)
            except httpx.TimeoutException as error:
                raise RequestTimedOut(f"the service sent nothing within the client's time limit: {path}") from error
            except httpx.TransportError as error:
                raise Unavailable(f"the connection to the service was lost: {type(error).__name__}") from error

    async def _send_with_retries(
        self, stack: AsyncExitStack, method: str, path: str, content: dict[str, Any]
    ) -> httpx.Response:
        for attempt in range(self._max_retries + 1):
            backoff_s = FIRST_BACKOFF_S * 2**attempt * random.uniform(0.5, 1.0)
            try:
                response = await stack.enter_async_context(self._http.stream(method, path, **content))
                if response.is_success:
                    return response
                error = error_of_response(
                    response.status_code, await response.aread(), response.headers.get("retry-after")
                )
                wait_s = error.retry_after_s if isinstance(error, Unavailable) else None
            except (httpx.ConnectError, httpx.ConnectTimeout) as failure:
                error = Unavailable(f"no service can be reached at {self._http.base_url}: {failure}", backoff_s)
                wait_s = backoff_s
            if wait_s is None or wait_s > MAX_RETRY_WAIT_S or attempt == self._max_retries:
                raise error
            await asyncio.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw or b"{}")
    except ValueError as error:
        raise RequestFailed("the response is no JSON") from error


async def _events(response: httpx.Response) -> AsyncIterator[Any]:
    """Yield the JSON of each event; raises the error that an event brings."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue  # comments keep the connection alive
        data = line[5:].strip()
        if data == "[DONE]":
            return
        event = _decoded(data.encode())
        if event.get("error"):
            raise rebuilt_error(event["error"])
        yield event


def _joined(first: RequestOutput | None, second: RequestOutput) -> RequestOutput:
    """Add the outputs of the first to those of the second, which follows it."""
    if first is not None:
        second.outputs = [*first.outputs, *second.outputs]
    return second
