"""Timers of one request's choices."""

from collections.abc import Callable

from rayinfer.kv_cache.adapter_id import name_in
from rayinfer.metrics.request_timer import RequestTimer
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import FinishReason, RequestOutput
from rayinfer.protocols import GenerationRequest


class StreamTimers:
    """Records the times of a request's tokens in the metrics, and the end of each of its choices exactly once.

    `on_end` is called at each end too.
    """

    def __init__(
        self,
        metrics: ServiceMetrics,
        model_name: str,
        request: GenerationRequest,
        *,
        on_end: Callable[[int, FinishReason], None] | None = None,
    ) -> None:
        self._metrics = metrics
        self._model_name = model_name
        self._on_end = on_end
        self.first_token_s: float | None = None  # from the arrival to the first token of any choice
        self._num_tokens: list[int] = []  # of the choices that have ended
        params = request.sampling_params
        if request.prediction is None:
            metrics.request_params(model_name, n=params.n, max_tokens=params.max_tokens)
        adapter = None if request.adapter is None else name_in(request.adapter)
        self._running: dict[int, RequestTimer] = {
            # The choices share one prompt, so the first alone counts its tokens.
            choice: metrics.request_started(
                model_name, request.num_input_tokens if choice == 0 else 0, request.tenant, adapter
            )
            for choice in range(params.n)
        }

    def record(self, output: RequestOutput) -> None:
        """Record an output for the client."""
        for completion in output.outputs:
            timer = self._running.get(completion.index)
            if timer is None:
                continue
            if output.prediction is None:
                timer.tokens(len(completion.token_ids), output.num_cached_tokens)
            else:
                timer.prediction(output.num_cached_tokens)
            if self.first_token_s is None:
                self.first_token_s = timer.first_token_s
            if completion.finish_reason is not None:
                self.finish(completion.index, completion.finish_reason)

    def record_engine_change(self) -> None:
        """Record that an engine begins or continues the choices that have not ended."""
        for timer in self._running.values():
            timer.record_engine_change()

    def record_dispatch(self) -> None:
        """Record that an engine has accepted the choices that have not ended."""
        for timer in self._running.values():
            timer.record_dispatch()

    def finish(self, choice: int, reason: FinishReason) -> None:
        """Record the end of one choice."""
        if timer := self._running.pop(choice, None):
            timer.finished(reason)
            self._num_tokens.append(timer.num_tokens)
            if not self._running:
                self._metrics.request_ended(self._model_name, self._num_tokens)
            if self._on_end is not None:
                self._on_end(choice, reason)

    def finish_all(self, reason: FinishReason) -> None:
        """Record the end of every choice that has not ended."""
        for choice in list(self._running):
            self.finish(choice, reason)
