"""`rayinfer ps`: the processes of the services on this machine, and what each is for."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.ray_environment import set_ray_settings


@in_one_line
def ps(
    as_json: Annotated[bool, typer.Option("--json", help="for scripts: a list of objects")] = False,
    port: Annotated[int | None, typer.Option(help="only the service on this port")] = None,
) -> None:
    """List the processes of running services."""
    from rayinfer_deployments.service_record import find_services

    records = find_services(port)
    set_ray_settings(owns_ray=any(record.owns_ray for record in records))
    from rayinfer_deployments.service_inventory import list_processes

    services = [(record, list_processes(record)) for record in records]
    if as_json:
        typer.echo(json.dumps([asdict(process) for _, processes in services for process in processes], indent=2))
        return

    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not services:
        console.print("no rayinfer service runs on this machine")
    for record, processes in services:
        console.print(f"{record.base_url}/v1", style="bold", soft_wrap=True)
        table = Table("pid", "role", "group", "rank", "replica", "load")
        for process in processes:
            fields = (process.pid, process.role, process.group, process.rank, process.replica, process.load)
            table.add_row(*("" if value is None else str(value) for value in fields))
        console.print(table)
