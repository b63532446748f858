"""Options of `rayinfer serve` that concern the cache of predictions."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.options.added_options import with_options

CACHE_PANEL = "Cache of predictions"

# By the names of the application's arguments.
OPTIONS: dict[str, Any] = {
    "prediction_cache_bytes": Annotated[
        int | None,
        typer.Option(
            help="memory of each router for the results of models that do not generate (default: 64 MiB; 0: none)",
            min=0,
            rich_help_panel=CACHE_PANEL,
        ),
    ],
    "prediction_cache_url": Annotated[
        str | None,
        typer.Option(
            help="Redis that keeps them too: redis://HOST:PORT/0, rediss:// with TLS; needs the extra redis. Others "
            "see command lines: redis://:PASSWORD@HOST belongs in the environment, or in a file that @FILE names",
            envvar="RAYINFER_PREDICTION_CACHE_URL",
            rich_help_panel=CACHE_PANEL,
        ),
    ],
    "prediction_cache_secret_file": Annotated[
        Path | None,
        typer.Option(help="file with a secret that signs what is in Redis", rich_help_panel=CACHE_PANEL),
    ],
}


def with_prediction_cache_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which receives the application's arguments as `application_settings`."""
    return with_options(command, OPTIONS, _checked)


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return what was given, checked before Ray starts; raises ConfigError."""
    settings = {name: value for name, value in given.items() if value is not None}
    if (url := settings.get("prediction_cache_url")) is not None:
        url = settings["prediction_cache_url"] = _read_url(url)
        from rayinfer.prediction_cache.cache_settings import checked_url
        from rayinfer.prediction_cache.redis_connection import check_extra_is_installed

        try:
            checked_url(url)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        check_extra_is_installed()
    if (file := settings.get("prediction_cache_secret_file")) is not None:
        from rayinfer.prediction_cache.router_cache import read_secret

        settings["prediction_cache_secret_file"] = str(file.expanduser().absolute())
        read_secret(settings["prediction_cache_secret_file"])
    return settings


def _read_url(text: str) -> str:
    """Return a URL, or the one that is in a file; raises ConfigError."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--prediction-cache-url {text}: the file cannot be read: {error}") from None
