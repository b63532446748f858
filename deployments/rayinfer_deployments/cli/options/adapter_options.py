"""Options of `rayinfer serve` that concern LoRA adapters, by vLLM's names."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.options.added_options import with_options

ADAPTER_PANEL = "LoRA adapters"
MODULES = ("--lora-modules", "--adapters")
BASE, PATH, NAME = "base_model_name", "path", "name"


def _option(*declarations: str, help_text: str) -> Any:
    return typer.Option(*declarations, help=help_text, rich_help_panel=ADAPTER_PANEL, show_default=False)


OPTIONS: dict[str, Any] = {
    "lora_modules": Annotated[
        list[str] | None,
        _option(
            *MODULES,
            help_text="adapters by the names under which requests choose them: NAME=FOLDER, or a JSON object with name,"
            " path and base_model_name; several may follow; with --enable-lora",
        ),
    ],
    "lora_folder": Annotated[
        Path | None,
        _option(
            "--lora-folder",
            help_text="folder whose subfolders are served as adapters by their names, as they come and go",
        ),
    ],
    "lora_root": Annotated[
        list[Path] | None,
        _option(
            "--lora-root",
            help_text="folder below which adapters may be loaded while the service runs, by /v1/load_lora_adapter and"
            " `rayinfer adapters load`; may be repeated (default: none are loaded)",
        ),
    ],
}


class ServeCommand(TyperCommand):
    """The command with vLLM's form of a list: `--lora-modules a=x b=y` is `--lora-modules a=x --lora-modules b=y`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option for each of its values."""
        return super().parse_args(ctx, repeated(args))


def repeated(args: Sequence[str]) -> list[str]:
    """Put the option before each module of a list; what is no module ends it."""
    written: list[str] = []
    previous: str | None = None  # the option, after one of its values
    for position, arg in enumerate(args):
        if previous is not None and position and not arg.startswith("-") and ("=" in arg or arg.startswith("{")):
            written += [arg] if written[-1] == previous else [previous, arg]
            continue
        previous = arg if arg in MODULES else None
        written.append(arg)
    return written


def with_adapter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command; `models_with_adapters` makes models' settings of what it receives."""

    def read(given: dict[str, Any]) -> dict[str, Any]:
        folder, roots = given["lora_folder"], given["lora_root"] or []
        return {
            "lora_modules": given["lora_modules"] or [],
            "lora_folder": None if folder is None else _absolute(folder),
            "lora_roots": [_absolute(root) for root in roots],
        }

    return with_options(command, OPTIONS, read)


def models_with_adapters(models: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """Take the options out of `given`; returns settings of models that have adapters, by name, raises ConfigError."""
    modules, folder = given.pop("lora_modules", ()), given.pop("lora_folder", None)
    settings: dict[str, Any] = {}
    for text in modules:
        module = _module(text)
        base = module.get(BASE) or _only(models, f"the adapter {module[NAME]!r}: write it as JSON with {BASE}")
        if base not in models:
            raise ConfigError(f"the adapter {module[NAME]!r} names no model that is served: {base!r}")
        named = settings.setdefault(base, {}).setdefault("lora_modules", {})
        if module[NAME] in named:
            raise ConfigError(f"two adapters have the name {module[NAME]!r}")
        named[module[NAME]] = _existing(module)
    if folder is not None:
        settings.setdefault(_only(models, "--lora-folder"), {})["lora_folder"] = folder
    return settings


def _only(models: Sequence[str], what: str) -> str:
    if len(models) > 1:
        raise ConfigError(f"several models are served, and one must be named for {what}")
    return models[0]


def _module(text: str) -> Mapping[str, str]:
    """Read one adapter in either form; raises ConfigError."""
    if not text.lstrip().startswith("{"):
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise ConfigError(f"--lora-modules expects NAME=FOLDER or a JSON object, got {text!r}")
        return {NAME: name, PATH: path}
    try:
        module = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--lora-modules is not readable as JSON: {error}") from None
    if not {NAME, PATH} <= module.keys() <= {NAME, PATH, BASE} or not all(
        isinstance(value, str) or (key == BASE and value is None) for key, value in module.items()
    ):
        raise ConfigError(f"--lora-modules expects an object with name, path and {BASE}, got {text!r}")
    return dict(module)


def _existing(module: Mapping[str, str]) -> str:
    """Return an adapter's folder; raises ConfigError where none is there."""
    from rayinfer.servers.adapters.adapter_folders import has_adapter

    folder = Path(module[PATH]).expanduser().absolute()
    if not has_adapter(folder):
        raise ConfigError(f"the adapter {module[NAME]!r} is not there: {folder} has no adapter_config.json and weights")
    return str(folder)


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())
