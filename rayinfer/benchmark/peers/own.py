"""rayinfer itself, in every mode that it has here."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayinfer.benchmark.peers.engine_process import ENGINES, engine_process
from rayinfer.benchmark.peers.system_under_test import Contender, Missing, ServerCommand, Setup
from rayinfer.config import engine_config
from rayinfer.errors import ConfigError
from rayinfer.optimization.mode_checks import excess, measured_model

NAME = "rayinfer"
ADAPTER = ENGINES / "rayinfer_engine.py"


@dataclass(frozen=True, slots=True)
class _Mode:
    weight_bits: int
    settings: Mapping[str, str]  # beside those that all modes have


MODES: Mapping[str, _Mode] = MappingProxyType(
    {
        "bfloat16": _Mode(16, {}),
        "int8": _Mode(8, {"quantization": "int8"}),
        "int8-dynamic": _Mode(8, {"quantization": "int8-dynamic"}),
        "int8-dynamic+int8-kv": _Mode(8, {"quantization": "int8-dynamic", "kv_cache_dtype": "int8"}),
        "int4": _Mode(4, {"quantization": "int4"}),
    }
)


def own_contenders(setup: Setup, modes: tuple[str, ...]) -> list[Contender | Missing]:
    """Find the modes that this version has."""
    return [_contender(setup, mode) for mode in modes]


def _contender(setup: Setup, mode: str) -> Contender | Missing:
    engine: dict[str, Any] = {"dtype": "bfloat16", "num_threads": setup.num_threads}
    if mode not in MODES:
        return Missing(label=f"{NAME} {mode}", reason=f"there is no such mode: choose from {', '.join(MODES)}")
    engine |= MODES[mode].settings
    concession = _concession(setup, MODES[mode])
    if concession is not None:
        engine["allow_inaccurate_quantization"] = True
    try:
        engine_config(model=setup.model, **engine)
    except ConfigError as error:
        return Missing(label=f"{NAME} {mode}", reason=str(error))
    return Contender(
        name=NAME,
        mode=mode,
        weight_bits=MODES[mode].weight_bits,
        open_engine=lambda log: engine_process(
            ADAPTER, {"model": str(setup.model_folder), "engine": engine}, setup=setup, log=log
        ),
        server=_server(setup, engine),
        concession=concession,
    )


def _concession(setup: Setup, mode: _Mode) -> str | None:
    """Return why the mode does not run with this model unless inaccuracy is allowed."""
    modes = [mode.settings.get("quantization")]
    if "kv_cache_dtype" in mode.settings:
        modes.append(f"{mode.settings['kv_cache_dtype']}-kv")
    model = measured_model(setup.model, setup.model_folder)
    reasons = [reason for each in modes if each is not None and (reason := excess(each, model)) is not None]
    return "; ".join(reasons) or None


def _server(setup: Setup, engine: dict[str, Any]) -> ServerCommand:
    command = [str(Path(sys.executable).with_name("rayinfer")), "serve", str(setup.model_folder)]
    options: list[str] = []
    for name, value in engine.items():
        options += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    arguments = [*command, "--port", "{port}", "--name", NAME, "--no-enable-prefix-caching", *options]
    return ServerCommand(
        arguments=setup.with_all_cores(arguments), ready_path="/ready", model=NAME, version=version(NAME)
    )
