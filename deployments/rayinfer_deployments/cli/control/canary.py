"""`rayinfer canary`: a share of a model's requests for another served model, promoted or rolled back while they run."""

from typing import Annotated, Any

import typer

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.control.limits import CHANGE_S
from rayinfer_deployments.cli.control.service_choice import Address, Application, Port, chosen_service
from rayinfer_deployments.cli.failures import in_one_line

STATUS_S = 15.0
DEFAULT_SHARE = 0.1


@in_one_line
def canary(
    model: Annotated[str | None, typer.Argument(help="model whose requests are shared")] = None,
    new: Annotated[str | None, typer.Argument(help="served model that answers the share")] = None,
    share: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help=f"share for the new model (default {DEFAULT_SHARE})")
    ] = None,
    by: Annotated[str | None, typer.Option(help="what is hashed: request or tenant (default request)")] = None,
    max_error_rate: Annotated[
        float | None, typer.Option(help="failed requests above the stable version's rate that end it (default 0.05)")
    ] = None,
    max_ttft_ratio: Annotated[
        float | None, typer.Option(help="mean TTFT against the stable version's that ends it (default 2)")
    ] = None,
    min_requests: Annotated[int | None, typer.Option(help="its requests before it is judged (default 50)")] = None,
    promote: Annotated[bool, typer.Option("--promote", help="send all of the model's requests to it")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="send all requests to the model itself again")] = False,
    port: Port = None,
    address: Address = None,
    application: Application = None,
) -> None:
    """Show canaries, after starting, changing, promoting or rolling one back if asked to; open streams continue."""
    wanted = {
        "share": share,
        "by": by,
        "max_error_rate": max_error_rate,
        "max_ttft_ratio": max_ttft_ratio,
        "min_requests": min_requests,
    }
    changes = {name: value for name, value in wanted.items() if value is not None}
    with chosen_service(port, address, application) as service:
        if model is not None:
            limits = service.ask("limits", timeout_s=CHANGE_S)
            canaries = limits.setdefault("canaries", {})
            served = _served_models(service.ask("status", timeout_s=STATUS_S))
            for name in (model, *([new] if new else [])):
                if name not in served:
                    raise ConfigError(f"{name!r} is not served; served are: {', '.join(served) or 'none'}")
            if changed_canary(canaries, model, new, changes, promote=promote, rollback=rollback):
                service.ask("change_limits", timeout_s=CHANGE_S, limits=limits)
        elif changes or promote or rollback:
            raise ConfigError("name the model whose requests are shared")
        report = service.ask("status", timeout_s=STATUS_S)
    for line in canary_lines(report["routers"]):
        typer.echo(line)


def changed_canary(
    canaries: dict[str, Any], model: str, new: str | None, changes: dict[str, Any], *, promote: bool, rollback: bool
) -> bool:
    """Change one model's settings in `canaries`; returns whether anything was asked for. Raises ConfigError."""
    if promote and rollback:
        raise ConfigError("--promote and --rollback exclude each other")
    if rollback:
        if canaries.pop(model, None) is None:
            raise ConfigError(f"{model!r} has no canary")
        return True
    current = canaries.get(model)
    if current is None and new is None:
        if changes or promote:
            raise ConfigError(f"{model!r} has no canary: name the model that gets the share")
        return False
    is_other = current is None or (new is not None and new != current["model"])
    base: dict[str, Any] = {"model": new, "share": DEFAULT_SHARE} if is_other else dict(current or {})
    canaries[model] = {**base, **changes, **({"share": 1.0} if promote else {})}
    return bool(is_other or changes or promote)


def canary_lines(routers: list[dict[str, Any]]) -> list[str]:
    """Describe each router's canaries, a line each; equal lines of several routers once."""
    lines = []
    for router in routers:
        for state in router.get("canaries", []):
            share, problem = state["share"], state["problem"]
            text = f"{share:.0%} of its requests" if share or not problem else "no requests"
            where = f" ({problem})" if problem else ""
            lines.append(f"{state['model']} -> {state['canary']}: {text}{where}")
    return list(dict.fromkeys(lines)) or ["no canary"]


def _served_models(report: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(model["name"] for router in report["routers"] for model in router["models"]))
