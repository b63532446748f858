"""Profiler of the loop's steps: traces for chrome://tracing and Perfetto, periodically."""

from types import TracebackType
from typing import Self

import torch

from rayinfer.jobs.parameters import Profiling


class StepProfiler:
    """Block in which some steps of each period are traced, with all threads of this process; None traces nothing."""

    def __init__(self, settings: Profiling | None) -> None:
        self._settings = settings
        self._profiler: torch.profiler.profile | None = None
        self._step = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin the first period."""
        settings = self._settings
        if settings is None:
            return
        settings.traces_dir.mkdir(parents=True, exist_ok=True)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        wait = settings.period_steps - settings.warmup_steps - settings.active_steps
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=wait, warmup=settings.warmup_steps, active=settings.active_steps),
            on_trace_ready=self._write,
            record_shapes=True,
            acc_events=True,
            experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
        )
        self._profiler.start()

    def stop(self) -> None:
        """End; a period that is not over leaves no trace."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def step(self) -> None:
        """End a step."""
        self._step += 1
        if self._profiler is not None:
            self._profiler.step()

    def _write(self, profiler: torch.profiler.profile) -> None:
        assert self._settings is not None
        profiler.export_chrome_trace(str(self._settings.traces_dir / f"step-{self._step}.json.gz"))
