"""Terminal lines of a service that starts: progress of its engines, their sizes, and default sampling parameters."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from rayinfer_deployments.cli.terminal import Phases
from rayinfer_deployments.discovery.engine_address import RankName
from rayinfer_deployments.engine.start_reports import StartReport

SHOWN_FROM_S = 0.1  # shorter steps are not printed
LOADING = "loading the model and warming it up"

# By task, the first that a model does: the path of an example, and its body.
EXAMPLES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "generate": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 32,
            "temperature": 0,
        },
    ),
    "embed": ("/v1/embeddings", {"input": ["What is the capital of France?", "Paris is the capital of France."]}),
    "score": ("/v1/score", {"text_1": "What is the capital of France?", "text_2": ["Paris.", "It rains."]}),
    "classify": ("/v1/classify", {"input": ["What a good film!", "I left after ten minutes."]}),
    "token_classify": ("/v1/pooling", {"task": "token_classify", "input": ["Ada Lovelace lived in London."]}),
}


class StartLines:
    """Display of engines' reports in the loading phase: the present step beside it, each finished one in a line."""

    def __init__(self, phases: Phases, *, num_processes: int) -> None:
        self._phases = phases
        self._names_processes = num_processes > 1
        self._engines: list[str] = []  # in the order of their first reports

    def show(self, reports: list[StartReport]) -> None:
        """Show what has been reported since the last call; no report, no change."""
        for report in reports:
            self._phases.enter(LOADING)
            where, step = self._where(report.process), report.step
            if step.seconds is None:
                count = f" {step.num_done} of {step.num_parts}" if step.num_parts else ""
                self._phases.explain(f"{where}{step.name}{count}")
                continue
            self._phases.explain("")
            if step.seconds >= SHOWN_FROM_S:
                self._phases.detail(f"{where}{step.name} ({step.seconds:.1f} s)")

    def _where(self, process: str) -> str:
        """Name an engine by its number, and a further process of it by its rank."""
        if not self._names_processes:
            return ""
        name = RankName.of(process)
        if name.engine not in self._engines:
            self._engines.append(name.engine)
        rank = f" rank {name.rank}" if name.rank else ""
        return f"engine {self._engines.index(name.engine) + 1}{rank}: "


def capacity_lines(status: Mapping[str, Any]) -> list[str]:
    """List the different capacities of each model's engines, from the answer to the command `status`."""
    capacities = {
        (model["name"], engine["capacity"]): None
        for router in status["routers"]
        for model in router["models"]
        for engine in model["engines"]
    }
    return [f"engine of {name}: {capacity}" for name, capacity in capacities]


def default_lines(status: Mapping[str, Any]) -> list[str]:
    """List the default sampling parameters of each model, from the answer to the command `status`."""
    lines = {
        f"default sampling parameters of {model['name']}: {_in_words(defaults)}": None
        for router in status["routers"]
        for model in router["models"]
        for defaults in model["default_sampling_params"]
    }
    return list(lines)


def example_command(url: str, model: str, tasks: list[str], *, has_keys: bool, has_one_model: bool) -> str:
    """Return a command that asks a model for something it can do; by default for an answer in a chat."""
    key = ' -H "Authorization: Bearer $RAYINFER_API_KEY"' if has_keys else ""
    if "classify_images" in tasks:
        path = "/v1/images/classify" if has_one_model else f"/v1/images/classify?model={model}"
        return f"curl {shlex.quote(url + path)} -H 'Content-Type: image/jpeg'{key} --data-binary @FILE.jpg"
    path, body = next((EXAMPLES[task] for task in tasks if task in EXAMPLES), EXAMPLES["generate"])
    content = shlex.quote(json.dumps({"model": model, **body}))
    return f"curl {url}{path} -H 'Content-Type: application/json'{key} -d {content}"


def _in_words(defaults: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in defaults.items()) or "none"
