"""`rayinfer doctor`: checks of this machine, or of a model on it, with what mends each problem."""

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rayinfer.prediction_cache.cache_settings import DEFAULT_CACHE_BYTES
from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.cli.options.config_options import with_engine_options
from rayinfer_deployments.cluster.ray_environment import Profile, set_ray_settings

STYLES = {"ok": "green", "advice": "yellow", "missing": "red", "pass": "green", "warn": "yellow", "fail": "red"}
MODEL_PANEL = "With --model"

AsJson = Annotated[bool, typer.Option("--json", help="for scripts: a list of objects")]
Model = Annotated[
    str | None,
    typer.Option(help="check this model instead: folder, repository, embedded or registered name", show_default=False),
]
ProfileOption = Annotated[Profile, typer.Option(help="what serve would be tuned for", rich_help_panel=MODEL_PANEL)]
RequestTimeout = Annotated[
    float | None, typer.Option(min=0.0, help="of serve, in seconds", rich_help_panel=MODEL_PANEL, show_default=False)
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="GiB that the model's process may use (default: the container's limit, or what is free)",
        rich_help_panel=MODEL_PANEL,
        show_default=False,
    ),
]
CacheBytes = Annotated[int, typer.Option(min=0, help="of serve; 0: no cache", rich_help_panel=MODEL_PANEL)]


@in_one_line
@with_engine_options
def doctor(
    model: Model = None,
    as_json: AsJson = False,
    profile: ProfileOption = Profile.LATENCY,
    request_timeout: RequestTimeout = None,
    memory_limit: MemoryLimit = None,
    prediction_cache_bytes: CacheBytes = DEFAULT_CACHE_BYTES,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Check this machine, or a model on it; exit code 1 when something needed is missing, or a check fails."""
    set_ray_settings(owns_ray=False)
    if model is None:
        from rayinfer_deployments.cli.doctor.machine_checks import check_machine

        findings = [asdict(finding) for finding in check_machine()]
        _show(findings, ("", "found", "to do"), as_json=as_json)
    else:
        from rayinfer.config import engine_config
        from rayinfer_deployments.cli.doctor.model_checks.checked_model import Expectations
        from rayinfer_deployments.cli.doctor.model_checks.checklist import check_model

        expectations = Expectations(
            request_timeout_s=request_timeout,
            memory_limit_bytes=None if memory_limit is None else int(memory_limit * 2**30),
            prediction_cache_bytes=prediction_cache_bytes,
        )
        config = engine_config(model=model, **profile.engine_settings | engine_settings)
        with _quiet_log():  # inputs are wrong on purpose
            findings = [asdict(result) for result in check_model(config, expectations)]
        _show(findings, (model, "measured", "to do"), as_json=as_json)
    if any(finding["verdict"] in ("missing", "fail") for finding in findings):
        raise typer.Exit(1)


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """Keep our own warnings off the terminal."""
    logger = logging.getLogger("rayinfer")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _show(findings: Iterable[dict[str, str]], heads: tuple[str, ...], *, as_json: bool) -> None:
    """Print the findings: name, verdict, what was found, and what to do."""
    if as_json:
        typer.echo(json.dumps(list(findings), indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None)
    for name, verdict, found, remedy in (finding.values() for finding in findings):
        table.add_row(Text(name, STYLES[verdict]), Text(found), Text(remedy))
    Console().print(table)
