"""`rayinfer limits`: admission limits and priorities of a running service's routers, shown and changed."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.control.service_choice import Address, Application, Port, chosen_service
from rayinfer_deployments.cli.failures import in_one_line

CHANGE_S = 60.0


@in_one_line
def limits(
    port: Port = None,
    file: Annotated[Path | None, typer.Option(help="YAML with all limits; what it leaves out gets its default")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, as in tenants.alice.weight=3; may be repeated")
    ] = None,
    address: Address = None,
    application: Application = None,
) -> None:
    """Show the limits, after changing them if asked to; open streams continue."""
    import yaml

    with chosen_service(port, address, application) as service:
        wanted = service.ask("limits", timeout_s=CHANGE_S) if file is None else mapping_in(file)
        for change in changes or ():
            _set(wanted, change)
        if file is not None or changes:
            wanted = service.ask("change_limits", timeout_s=CHANGE_S, limits=wanted)
    typer.echo(yaml.safe_dump(wanted, sort_keys=False), nl=False)


def mapping_in(file: Path) -> dict[str, Any]:
    """Read a YAML file of NAME: VALUE lines; raises ConfigError when it holds anything else."""
    import yaml

    try:
        content = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold NAME: VALUE lines")
    return content


def _set(settings: dict[str, Any], change: str) -> None:
    """Set one value in nested settings; `NAME=` removes a name."""
    import yaml

    path, sign, text = change.partition("=")
    if not sign or not path:
        raise ConfigError(f"--set must be NAME=VALUE, got {change!r}")
    *parents, last = path.split(".")
    for parent in parents:
        settings = settings.setdefault(parent, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"--set {change}: {parent!r} is a value, not a group of settings")
    if text:
        settings[last] = yaml.safe_load(text)
    else:
        settings.pop(last, None)
