"""The client for programs without asyncio: an event loop in a thread of its own."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from rayinfer.client.async_client import DEFAULT_TIMEOUT_S, DEFAULT_URL, AsyncInferenceClient
from rayinfer.client.request_bodies import Prompt, RequestOptions
from rayinfer.outputs import RequestOutput
from rayinfer.sampling_params import SamplingParams

Result = TypeVar("Result")


class InferenceClient:
    """Client of one service, for any number of threads; use it as a context manager or with `close`.

    The settings and errors are those of `AsyncInferenceClient`.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_retries: int = 2,
        max_connections: int = 1000,
    ) -> None:
        self._client = AsyncInferenceClient(
            base_url,
            api_key=api_key,
            timeout_s=timeout_s,
            max_retries=max_retries,
            max_connections=max_connections,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="inference-client", daemon=True)
        self._thread.start()

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> concurrent.futures.Future[RequestOutput]:
        """Send a request; returns a future of its whole output. Without `params` the model's defaults apply."""
        return self._start(self._client.generate(prompt, params, **options))

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> RequestOutput:
        """Send a request and wait for its whole output; an interrupt ends the generation."""
        return self._run(self._client.generate(prompt, params, **options))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Generator[RequestOutput, None, None]:
        """Send a request and yield what is new as it comes; closing the generator ends the generation."""
        outputs = self._client.stream(prompt, params, **options)

        async def next_output() -> RequestOutput | None:
            return await anext(outputs, None)

        try:
            while (output := self._run(next_output())) is not None:
                yield output
        finally:
            self._run(_close(outputs))

    def abort(self, future: concurrent.futures.Future[RequestOutput]) -> None:
        """End a submitted request in the service, too; its future is cancelled."""
        future.cancel()

    def pause(self, model: str | None = None) -> None:
        """Have the engines of a model compute nothing; requests stay (with `--enable-engine-control`)."""
        self._run(self._client.pause(model))

    def resume(self, model: str | None = None) -> None:
        """Continue after `pause`."""
        self._run(self._client.resume(model))

    def is_paused(self, model: str | None = None) -> bool:
        """Return whether no engine of a model computes anything (with `--enable-engine-control`)."""
        return self._run(self._client.is_paused(model))

    def models(self) -> list[str]:
        """List the names of the models."""
        return self._run(self._client.models())

    def close(self) -> None:
        """Cancel what is in flight, close the connections and end the thread; may be called again."""
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    def _start(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = self._start(work)
        try:
            return future.result()
        finally:
            future.cancel()  # of an interrupt; else it is done


async def _close(outputs: Any) -> None:
    await outputs.aclose()
