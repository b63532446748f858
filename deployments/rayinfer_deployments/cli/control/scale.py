"""`rayinfer scale`: the number of engines of a running service."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.errors import ConfigError
from rayinfer.routing.autoscaling_settings import autoscaling_settings
from rayinfer.routing.roles.settings import RoleSettings
from rayinfer_deployments.cli.control.limits import mapping_in
from rayinfer_deployments.cli.control.service_choice import Address, Application, Port, chosen_service
from rayinfer_deployments.cli.failures import in_one_line

WAIT_S = 600.0  # the service's own bound
SCALE_S = WAIT_S + 50.0
AUTO = "auto"
MAX_NUM_ENGINES = 1024


@in_one_line
def scale(
    engines: Annotated[
        str,
        typer.Argument(
            metavar="N", help="number of engines of each model, or auto: the settings from the start of the service"
        ),
    ],
    port: Port = None,
    model: Annotated[str | None, typer.Option(help="only this model's engines (default: those of each model)")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait for resources, where the cluster may add nodes")] = False,
    address: Address = None,
    application: Application = None,
) -> None:
    """Set the number of each model's engines; streams of removed engines migrate to the others."""
    number = engine_count(engines)
    with chosen_service(port, address, application) as service:
        if wait:
            typer.echo(f"waiting up to {WAIT_S:.0f} s for engines, and for nodes to place them on", err=True)
        now = service.ask("scale", timeout_s=SCALE_S, num_engines=number, model=model, waits_for_nodes=wait)
    for name, there in now.items():
        typer.echo(f"{name}: {len(there)} engine{'' if len(there) == 1 else 's'} ({', '.join(there) or 'none'})")


def engine_count(text: str) -> int | None:
    """Parse the number of engines, None for the settings from the start of the service; raises ConfigError."""
    if text == AUTO:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MAX_NUM_ENGINES:
        raise ConfigError(f"expected a number of engines from 1 to {MAX_NUM_ENGINES}, or {AUTO}, got {text!r}")
    return int(text)


def engines_asked_for(replicas: str | None, autoscaling: Path | None, roles: str | None = None) -> dict[str, Any]:
    """Turn `--replicas N` or `MIN:MAX`, `--autoscaling FILE` and `--roles` into a model's settings.

    Raises ConfigError.
    """
    if roles is not None:
        checked = RoleSettings.parse(roles)
        if replicas is None and autoscaling is None:
            replicas = str(checked.num_engines)
        return engines_asked_for(replicas, autoscaling) | {"roles": checked.model_dump()}
    fewest, colon, most = (replicas or "").partition(":")
    if autoscaling is None and not colon:
        return {"num_replicas": 1 if replicas is None else _number(fewest, 1)}
    if autoscaling is not None and replicas is not None and not colon:
        raise ConfigError(
            f"--replicas {replicas} is a fixed number, which excludes --autoscaling: use --replicas MIN:MAX"
        )
    settings = {} if autoscaling is None else mapping_in(autoscaling)
    if colon:
        settings |= {"min_replicas": _number(fewest, 0), "max_replicas": _number(most, 1)}
    return {"autoscaling": autoscaling_settings(settings).model_dump(mode="json")}


def _number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"--replicas must be N or MIN:MAX, integers of at least {least}, got {text!r}")
    return int(text)
