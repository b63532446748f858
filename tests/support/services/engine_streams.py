"""Requests and their whole answers over an engine, with the calls of `LLM`.

`LLM` also builds engines over several ranks, for which it loads packages that a machine lent for its GPU may lack.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rayinfer.engine.loop.engine import Engine
from rayinfer.outputs import EngineStats, OutputAggregate, RequestOutput, TraceEvent
from rayinfer.protocols import EngineRequestId, GenerationRequest, Pause, Resume, Sleep, Wake
from rayinfer.routing.stream_state import StreamState
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.bad_words import bad_word_tokenizer
from rayinfer.tokenization.tokenizer import Tokenizer


class EngineStreams:
    """An engine, and the streams of its unfinished requests."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self._tokenizer = Tokenizer.from_folder(folder)
        self._streams: dict[str, StreamState] = {}
        self._outputs: dict[str, OutputAggregate] = {}
        self._events: dict[str, list[TraceEvent]] = {}

    def add_request(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        trace: bool = False,
    ) -> None:
        """Queue a prompt for `step`."""
        request = GenerationRequest(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=params.with_tokenized_bad_words(bad_word_tokenizer(self._tokenizer)),
            priority=priority,
            trace=trace,
        )
        stream = self._streams[request_id] = StreamState(request, self._tokenizer)
        self._outputs[request_id] = OutputAggregate(params.n)
        for part in stream.engine_requests():
            self.engine.add_request(part)

    def step(self) -> list[RequestOutput]:
        """Take the engine's next step; returns the requests that ended with it, each as a whole."""
        finished = []
        for delta in self.engine.step():
            name = EngineRequestId.request_id_of(delta.request_id)
            stream = self._streams.get(name)
            if stream is None:  # it was ended by a stop string, a step earlier
                continue
            events = self._events.setdefault(name, [])
            events += delta.trace or ()
            if (output := stream.apply(delta)) is not None:
                self._outputs[name].add(output)
            for stopped in stream.stopped_request_ids():
                ended = self.engine.abort(stopped)
                events += (ended.trace or ()) if ended is not None else ()
            if stream.is_finished:
                output = self._outputs.pop(name).whole()
                output.trace = self._events.pop(name)
                finished.append(output)
                del self._streams[name]
        return finished

    def has_unfinished_requests(self) -> bool:
        """Return whether `step` has anything left to do."""
        return bool(self._streams)

    @property
    def stats(self) -> EngineStats:
        """The engine's counters and gauges."""
        return self.engine.stats

    def pause(self) -> None:
        self.engine.control(Pause())

    def resume(self) -> None:
        self.engine.control(Resume())

    def sleep(self, level: int = 1) -> None:
        self.engine.control(Sleep(level))

    def wake(self) -> None:
        self.engine.control(Wake())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.engine.exit()
