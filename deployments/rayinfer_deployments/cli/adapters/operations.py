"""`rayinfer adapters`: LoRA adapters of a running service."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer_deployments.cli.control.service_choice import Address, Application, Port, chosen_service
from rayinfer_deployments.cli.failures import in_one_line

LIST_S = 30.0
LOAD_S = 150.0  # the service's own bound is shorter


def build_application() -> typer.Typer:
    """Put the subcommands together."""
    application = typer.Typer(no_args_is_help=True, help="List, load and unload LoRA adapters of a running service.")
    application.command(name="list")(list_adapters)
    application.command()(load)
    application.command()(unload)
    return application


@in_one_line
def list_adapters(
    as_json: Annotated[bool, typer.Option("--json", help="write JSON")] = False,
    port: Port = None,
    address: Address = None,
    application: Application = None,
) -> None:
    """List the adapters with their models, digests and folders."""
    with chosen_service(port, address, application) as service:
        found = service.ask("adapters", timeout_s=LIST_S, action="list")
    if as_json:
        typer.echo(json.dumps(found))
        return
    for adapter in found:
        typer.echo(_line(adapter))
    if not found:
        typer.echo("no adapters")


@in_one_line
def load(
    name: Annotated[str, typer.Argument(help="name under which requests choose it")],
    folder: Annotated[Path, typer.Argument(help="folder that PEFT saved, below one of the service's --lora-root")],
    base: Annotated[str | None, typer.Option(help="name of its model (default: the only one)")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="replace the adapter that has the name")] = False,
    port: Port = None,
    address: Address = None,
    application: Application = None,
) -> None:
    """Load an adapter: an engine reads and checks it before requests can choose it."""
    path = str(folder.expanduser().absolute())
    with chosen_service(port, address, application) as service:
        adapter = service.ask(
            "adapters", timeout_s=LOAD_S, action="load", name=name, folder=path, base=base, in_place=in_place
        )
    typer.echo(_line(adapter))


@in_one_line
def unload(
    name: Annotated[str, typer.Argument(help="name of the adapter")],
    port: Port = None,
    address: Address = None,
    application: Application = None,
) -> None:
    """Unload an adapter: new requests of its name are refused, running ones finish."""
    with chosen_service(port, address, application) as service:
        service.ask("adapters", timeout_s=LOAD_S, action="unload", name=name)
    typer.echo(f"unloaded: {name}")


def _line(adapter: dict[str, Any]) -> str:
    return f"{adapter['name']}: {adapter['base']}, {adapter['digest']}, {adapter['folder']} ({adapter['origin']})"
