"""`rayinfer keys`: API keys of services, made, listed and revoked in their file."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.config import default_key_file
from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.failures import in_one_line

KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", help="file of keys (default: that of the running service, else api-keys.jsonl in the cache folder)"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print a list of objects, for scripts")]


def build_application() -> typer.Typer:
    """Put the commands together."""
    application = typer.Typer(
        help="Make, list and revoke API keys: a service with a key file answers no client without a key.",
        no_args_is_help=True,
    )
    application.command("new")(new)
    application.command("list")(list_keys)
    application.command("revoke")(revoke)
    return application


def chosen_key_file(given: Path | None) -> Path:
    """Return the file of keys: the one given, that of the services that run here, or the default.

    Raises ConfigError where running services have different ones.
    """
    if given is not None:
        return given
    from rayinfer_deployments.cluster.service_record import find_services

    found = sorted({record.key_file for record in find_services() if record.key_file is not None})
    if len(found) > 1:
        raise ConfigError(f"the running services have different key files: choose one with --file ({', '.join(found)})")
    return Path(found[0]) if found else default_key_file()


@in_one_line
def new(
    name: Annotated[str, typer.Argument(help="name of the key, in lists and usage")],
    file: KeyFileOption = None,
    tenant: Annotated[
        str | None, typer.Option(help="tenant whose share and prefix cache it uses (default: NAME)")
    ] = None,
    weight: Annotated[float, typer.Option(help="the tenant's share of the tokens under overload")] = 1.0,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="infer, metrics (read /metrics) or operate (control engines); may be repeated (default: infer)"
        ),
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="a model it may use; may be repeated (default: all)")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="HTTP requests and gRPC calls a minute")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="tokens of prompts and answers a minute, of these max_tokens from the begin")
    ] = None,
    concurrent_requests: Annotated[
        int | None, typer.Option(help="sequences (prompts times n) at the same time")
    ] = None,
    max_context: Annotated[int | None, typer.Option(help="tokens of a prompt and its answer together")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="tokens of one answer")] = None,
    output_tokens_per_day: Annotated[int | None, typer.Option(help="tokens of answers a day (UTC)")] = None,
    most_urgent: Annotated[int, typer.Option(help="lowest priority number it may set: lower is more urgent")] = -10,
    least_urgent: Annotated[int, typer.Option(help="highest priority number it may set")] = 10,
) -> None:
    """Make a key and print its secret, which is stored nowhere; running services know it within a second."""
    from rayinfer.access.api_key import key_limits, scopes_of
    from rayinfer.access.key_file import KeyFile

    limits = key_limits(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrent_requests=concurrent_requests,
        max_context=max_context,
        max_tokens=max_tokens,
        output_tokens_per_day=output_tokens_per_day,
        most_urgent=most_urgent,
        least_urgent=least_urgent,
        models=tuple(model) if model else None,
    )
    path = chosen_key_file(file)
    keys = KeyFile(path)
    is_first = not keys.stamp()
    typer.echo(keys.create(name, tenant=tenant, weight=weight, scopes=scopes_of(scope or ["infer"]), limits=limits))
    if is_first:
        option = f" with --api-keys {file}" if file else ""
        typer.echo(f"made {path}: services that are started{option} from now on ask for keys", err=True)
    else:
        typer.echo(f"added to {path}", err=True)


@in_one_line
def list_keys(file: KeyFileOption = None, as_json: JsonOption = False) -> None:
    """List the keys and when each was last used."""
    from rayinfer.access.key_file import KeyFile
    from rayinfer.access.usage_log import UsageLog, usage_log_path

    path = chosen_key_file(file)
    keys, log_path = KeyFile(path).read(), usage_log_path(path)
    last_used = UsageLog(log_path).last_used_s() if log_path.exists() else {}
    rows: list[dict[str, Any]] = [
        key.model_dump(mode="json", exclude={"sha256"}) | {"last_used_s": last_used.get(key.key_id)} for key in keys
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        typer.echo(f"{len(rows)} keys in {path}", err=True)
        return
    for row in rows:
        limits = {name: value for name, value in row["limits"].items() if value not in (None, -10, 10)}
        state = "revoked" if row["revoked_s"] else f"last used {_when(row['last_used_s'])}"
        scopes = ",".join(sorted(row["scopes"]))
        described = " ".join(f"{name}={value}" for name, value in limits.items())
        typer.echo(
            f"{row['key_id']}  {row['name']}  tenant {row['tenant']} x{row['weight']:g}  {scopes}  "
            f"{state}  {described}".rstrip()
        )
    typer.echo(f"{len(rows)} keys in {path}")


@in_one_line
def revoke(
    key: Annotated[str, typer.Argument(help="name or id of the key")],
    file: KeyFileOption = None,
) -> None:
    """Revoke a key; running services refuse it within a second, and its open streams continue."""
    from rayinfer.access.key_file import KeyFile

    path = chosen_key_file(file)
    revoked = KeyFile(path).revoke(key)
    typer.echo(f"revoked {revoked.name} ({revoked.key_id}) in {path}")


def _when(time_s: float | None) -> str:
    return "never" if time_s is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(time_s))
