"""Options of `rayinfer serve` that concern access: keys, usage, bodies, TLS, CORS, the access log and spans."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.config import default_key_file, environment_api_keys
from rayinfer.errors import ConfigError
from rayinfer.images.fetching.media_settings import check_domain
from rayinfer.servers.request_bounds import DEFAULT_MAX_BODY_BYTES, MAX_BODY_BYTES
from rayinfer_deployments.cli.options.added_options import with_options

ACCESS_PANEL = "Access"
FILES = ("access_log", "tls_cert", "tls_key", "tls_client_ca")


def _option(help_text: str, **settings: Any) -> Any:
    return typer.Option(help=help_text, rich_help_panel=ACCESS_PANEL, **settings)


# By the names of the application's arguments, but for `cors_origin` and `allowed_host`, which may be repeated.
OPTIONS: dict[str, Any] = {
    "api_keys": Annotated[
        Path | None,
        _option(
            "file of keys, which `rayinfer keys new` makes, beside which usage is recorded (default: api-keys.jsonl in "
            "the cache folder, if it is there); without it and RAYINFER_API_KEYS the service is open to all"
        ),
    ],
    "price_per_engine_hour": Annotated[float | None, _option("price by which /v1/usage shows the cost", min=0.0)],
    "access_log": Annotated[Path | None, _option("file that gets a line of JSON for each request, without prompts")],
    "otlp_traces_endpoint": Annotated[
        str | None, _option("URL that gets a span of each generation by OTLP over HTTP; needs the extra otel")
    ],
    "max_body_bytes": Annotated[
        int | None,
        _option(
            f"largest body of a request (default: {DEFAULT_MAX_BODY_BYTES}); "
            "where a model takes images, theirs may have more",
            min=1024,
            max=MAX_BODY_BYTES,
        ),
    ],
    "cors_origin": Annotated[
        list[str] | None, _option("origin of web pages that may use the service, * for all; may be repeated")
    ],
    "allowed_host": Annotated[
        list[str] | None,
        _option(
            "name by which browsers may reach a service without keys, beside addresses, localhost and this machine's "
            "name; * for all; may be repeated"
        ),
    ],
    "allowed_media_domains": Annotated[
        list[str] | None,
        _option(
            "host, or host:port, that images of requests may be fetched from by URL; may be repeated, or a list with "
            "commas (default: none, images come in requests)"
        ),
    ],
    "allow_private_media": Annotated[
        bool | None, _option("let hosts of --allowed-media-domains be in private networks, as in an intranet")
    ],
    "trace_prompts": Annotated[
        bool | None, _option("keep the begin of prompts for ten minutes, for GET /v1/requests of the same tenant")
    ],
    "tls_cert": Annotated[
        Path | None, _option("certificate (PEM) for HTTP and gRPC, with --tls-key; loaded again when it changes")
    ],
    "tls_key": Annotated[Path | None, _option("key of the certificate (PEM)")],
    "tls_client_ca": Annotated[Path | None, _option("ask clients for certificates of these authorities (PEM)")],
}


def with_access_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which receives the application's arguments as `application_settings`."""

    def read(given: dict[str, Any]) -> dict[str, Any]:
        settings: dict[str, Any] = {name: _absolute(given[name]) for name in FILES if given[name] is not None}
        settings["api_keys"] = _key_file(given["api_keys"])
        settings["otlp_traces_endpoint"] = _traces_endpoint(given["otlp_traces_endpoint"])
        if given["max_body_bytes"] is not None:
            settings["max_body_bytes"] = given["max_body_bytes"]
        settings["cors_origins"] = given["cors_origin"] or []
        settings["allowed_hosts"] = given["allowed_host"] or []
        domains = ",".join(given["allowed_media_domains"] or []).split(",")
        settings["allowed_media_domains"] = [check_domain(each.strip()) for each in domains if each.strip()]
        settings["allow_private_media"] = bool(given["allow_private_media"])
        settings["trace_prompts"] = bool(given["trace_prompts"])
        settings["price_per_engine_hour"] = given["price_per_engine_hour"] or 0.0
        return settings

    return with_options(command, OPTIONS, read)


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())


def _traces_endpoint(given: str | None) -> str | None:
    if given is None:
        return None
    from rayinfer.traces.generation_span import check_extra_is_installed, checked_endpoint

    check_extra_is_installed()
    return checked_endpoint(given)


def _key_file(given: Path | None) -> str | None:
    """Return the file of keys that the service asks for, checked; None for an open service."""
    path = given or default_key_file()
    if given is None and not path.exists() and not environment_api_keys():
        return None
    from rayinfer.access.api_key import environment_keys
    from rayinfer.access.key_file import KeyFile

    environment_keys(environment_api_keys())
    keys = KeyFile(path)
    if given is not None and not keys.stamp():
        raise ConfigError(f"the key file {path} is not there: make it with `rayinfer keys new NAME --file {path}`")
    keys.read()
    if warning := keys.warning():
        typer.echo(f"warning: {warning}", err=True)
    return _absolute(path)
