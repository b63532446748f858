"""Options of `rayinfer serve` that concern files and batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer_deployments.cli.options.added_options import with_options

BATCHES_PANEL = "Batches"
NONE = "none"


def _option(help_text: str, **settings: Any) -> Any:
    return typer.Option(help=help_text, rich_help_panel=BATCHES_PANEL, **settings)


# By the names of the application's arguments.
OPTIONS: dict[str, Any] = {
    "batches_folder": Annotated[
        str | None,
        _option(
            "folder of /v1/files and /v1/batches, which outlive the service (default: batches/PORT in the cache "
            f"folder; {NONE}: no batches)"
        ),
    ],
    "max_batch_file_bytes": Annotated[int | None, _option("largest file of a batch (default: 200 MiB)", min=1024)],
    "max_batch_requests": Annotated[int | None, _option("requests of one batch (default: 50,000)", min=1)],
}


def with_batch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which receives the application's arguments as `application_settings`."""
    return with_options(command, OPTIONS, _given)


def _given(given: dict[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in given.items() if value is not None}
    folder = settings.get("batches_folder")
    if folder is not None:
        settings["batches_folder"] = None if folder == NONE else str(Path(folder).expanduser().absolute())
    return settings
