"""`rayinfer status`: the state of a service and its engines, and the reason if it is not ready."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayinfer.errors import RayinferError
from rayinfer_deployments.cli.control.canary import canary_lines
from rayinfer_deployments.cli.control.service_choice import Address, Application, joined, ray_to_join
from rayinfer_deployments.cli.failures import in_one_line

if TYPE_CHECKING:
    from rich.console import Console

    from rayinfer_deployments.cluster.service_record import ServiceRecord

RESPONSE_TIMEOUT_S = 5.0
STATUS_S = 15.0


@in_one_line
def status(
    port: Annotated[int | None, typer.Option(help="only the service on this port")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts: a list of objects")] = False,
    address: Address = None,
    application: Application = None,
) -> None:
    """Show the state of services; exit code 0 if all are ready, else 1."""
    from rayinfer_deployments.cluster.service_record import find_services

    if (ray_address := ray_to_join(port, address, application)) is not None:
        found = [_look_at_deployed(ray_address, application)]
    else:
        found = [_look_at(record) for record in find_services(port)]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _show(found)
    if not found or not all(service["ready"] for service in found):
        raise typer.Exit(1)


def _look_at(record: "ServiceRecord") -> dict[str, Any]:
    """Query the HTTP port and the control socket; either may be closed."""
    from rayinfer_deployments.cluster.control_client import ask

    ready, reasons = _readiness(record.base_url)
    service: dict[str, Any] = {
        "url": record.base_url,
        "port": record.port,
        "pid": record.pid,
        "age_s": round(record.age_s, 1),
        "ray_address": record.ray_address,
        "owns_ray": record.owns_ray,
        "ready": ready,
        "reasons": reasons,
    }
    try:
        service |= ask(record.control_socket, "status", timeout_s=STATUS_S)
    except RayinferError as error:
        service |= {"state": "UNKNOWN", "reason": str(error), "deployments": [], "routers": []}
    if not ready and not reasons:  # which a service with keys does not say to all
        service["reasons"] = {
            model["name"]: model["reason"]
            for router in service["routers"]
            for model in router["models"]
            if not model["ready"]
        }
    return service


def _look_at_deployed(ray_address: str, application: str | None) -> dict[str, Any]:
    with joined(ray_address, application, looks_at_settings=True) as service:
        from rayinfer_deployments.operations.attached_service import readiness_in

        report = service.ask("status", timeout_s=STATUS_S)
        reasons = readiness_in(report)
        described: dict[str, Any] = service.describe() | {"ready": not reasons, "reasons": reasons} | report
        return described


def _readiness(url: str) -> tuple[bool, dict[str, str]]:
    import httpx

    try:
        response = httpx.get(f"{url}/ready", timeout=RESPONSE_TIMEOUT_S, trust_env=False, verify=False)
    except httpx.TransportError as error:
        return False, {"http": f"the port does not answer ({type(error).__name__})"}
    try:
        return response.status_code == 200, response.json().get("reasons", {})
    except (ValueError, AttributeError):
        return False, {"http": f"the port answers {response.status_code}: {response.text[:200]}"}


def _show(services: list[dict[str, Any]]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not services:
        console.print("no rayinfer service runs on this machine")
    for service in services:
        _show_summary(console, service)
        _show_engines(console, service)
        _show_deployments(console, service)
        _show_canaries(console, service)
        for setting in service.get("missing_settings", []):
            console.print(f"Ray's environment lacks {setting}", style="yellow", markup=False, soft_wrap=True)


def _show_summary(console: "Console", service: dict[str, Any]) -> None:
    state, style = ("ready", "green") if service["ready"] else ("not ready", "red")
    origin = "started with the service" if service["owns_ray"] else "attached"
    console.print(f"[bold]{service['url']}/v1[/bold]  [{style}]{state}[/{style}]", soft_wrap=True)
    details = f"up for {_in_words(service['age_s'])}, Ray at {service['ray_address']} ({origin})"
    console.print(f"{details}, Serve: {service['state']}", markup=False, soft_wrap=True)
    for name, reason in service["reasons"].items():
        console.print(f"{name}: {reason}", style="red", markup=False, soft_wrap=True)
    if service["reason"]:
        console.print(service["reason"], style="red", markup=False, soft_wrap=True)
    for error in dict.fromkeys(router.get("key_error") for router in service["routers"]):
        if error:
            console.print(f"the last API keys apply: {error}", style="red", markup=False, soft_wrap=True)


def _show_engines(console: "Console", service: dict[str, Any]) -> None:
    from rich.table import Table

    engines = Table("model", "engine", "state", "running", "waiting", "KV cache")
    seen: set[str] = set()
    for router in service["routers"]:
        for model in router["models"]:
            for engine in model["engines"]:
                if engine["name"] not in seen:
                    counts = (str(engine["num_running"]), str(engine["num_waiting"]))
                    usage = f"{engine['kv_cache_usage']:.0%}"
                    engines.add_row(model["name"], engine["name"], engine["state"], *counts, usage)
                seen.add(engine["name"])
    if seen:
        console.print(engines)


def _show_deployments(console: "Console", service: dict[str, Any]) -> None:
    from rich.table import Table

    if not service["deployments"]:
        return
    waiting = {router["name"]: sum(model["num_waiting"] for model in router["models"]) for router in service["routers"]}
    table = Table("deployment", "state", "wanted", "there", "requests without a token", "reason")
    for deployment in service["deployments"]:
        replicas = ", ".join(f"{count} {state.lower()}" for state, count in deployment["replicas"].items() if count)
        queues = ", ".join(map(str, waiting.values())) if deployment["name"] == "router" else ""
        wanted = "" if deployment["wanted"] is None else str(deployment["wanted"])
        table.add_row(deployment["name"], deployment["state"], wanted, replicas, queues, deployment["reason"])
    console.print(table)


def _show_canaries(console: "Console", service: dict[str, Any]) -> None:
    if any(router.get("canaries") for router in service["routers"]):
        for line in canary_lines(service["routers"]):
            console.print(f"canary {line}", markup=False, soft_wrap=True)


def _in_words(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 2 else f"{hours:.1f} h"
