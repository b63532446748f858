"""`rayinfer ps`: the processes of the services on this machine, with their roles."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rayinfer_deployments.cli.control.service_choice import Address, Application, joined, ray_to_join
from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.cluster.ray_environment import set_ray_settings

if TYPE_CHECKING:
    from rayinfer_deployments.operations.process_listing import ServiceProcess

STATUS_S = 15.0


@in_one_line
def ps(
    as_json: Annotated[bool, typer.Option("--json", help="for scripts: a list of objects")] = False,
    port: Annotated[int | None, typer.Option(help="only the service on this port")] = None,
    address: Address = None,
    application: Application = None,
) -> None:
    """List the processes of running services."""
    ray_address = ray_to_join(port, address, application)
    services = _on_record(port) if ray_address is None else _deployed(ray_address, application)
    if as_json:
        typer.echo(json.dumps([asdict(process) for _, processes in services for process in processes], indent=2))
        return

    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not services:
        console.print("no rayinfer service runs on this machine")
    for url, processes in services:
        console.print(f"{url}/v1", style="bold", soft_wrap=True)
        table = Table("pid", "role", "group", "rank", "replica", "load")
        for process in processes:
            fields = (process.pid, process.role, process.group, process.rank, process.replica, process.load)
            table.add_row(*("" if value is None else str(value) for value in fields))
        console.print(table)


def _on_record(port: int | None) -> list[tuple[str, list["ServiceProcess"]]]:
    from rayinfer_deployments.cluster.service_record import find_services

    records = find_services(port)
    set_ray_settings(owns_ray=any(record.owns_ray for record in records))
    from rayinfer_deployments.operations.process_listing import list_processes

    return [(record.base_url, list_processes(record)) for record in records]


def _deployed(address: str, application: str | None) -> list[tuple[str, list["ServiceProcess"]]]:
    with joined(address, application) as service:
        from rayinfer_deployments.operations.process_listing import list_deployed_processes

        report = service.ask("status", timeout_s=STATUS_S)
        return [(service.url, list_deployed_processes(service.ray_address, service.application, report))]
