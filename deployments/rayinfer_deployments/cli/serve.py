"""`rayinfer serve`: models behind one port for every protocol, until Ctrl-C."""

import contextlib
import errno
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.config import DEFAULT_MODEL, cache_folder, default_batches_folder, engine_config
from rayinfer.errors import RayinferError
from rayinfer.routing.limits import router_limits
from rayinfer.servers.request_limits import request_limits as checked_request_limits
from rayinfer.tool_calls.formats import ToolFormatName
from rayinfer_deployments.cli.control.limits import mapping_in
from rayinfer_deployments.cli.control.scale import engines_asked_for
from rayinfer_deployments.cli.failures import in_one_line, interrupt_on_signals, leave_at_once
from rayinfer_deployments.cli.options.access_options import with_access_options
from rayinfer_deployments.cli.options.adapter_options import models_with_adapters, with_adapter_options
from rayinfer_deployments.cli.options.batch_options import with_batch_options
from rayinfer_deployments.cli.options.config_options import with_engine_options
from rayinfer_deployments.cli.options.prediction_cache_options import with_prediction_cache_options
from rayinfer_deployments.cli.service_run import Service, run_service
from rayinfer_deployments.cli.terminal import QuietTerminal
from rayinfer_deployments.cluster.haproxy_files import haproxy_files
from rayinfer_deployments.cluster.ray_environment import THROUGHPUT_SETTINGS, Profile, set_ray_settings
from rayinfer_deployments.router.connection_limits import DEFAULT_CONNECTION_LIMITS

MAX_PORT = 65535

Models = Annotated[
    list[str] | None,
    typer.Argument(
        help=f"folders, GGUF files, Hugging Face repositories or embedded names, each also as MODEL=NAME "
        f"(default: {DEFAULT_MODEL})",
        show_default=False,
    ),
]
Port = Annotated[int, typer.Option(min=1, max=MAX_PORT, help="port of HTTP, for all protocols")]
ModelName = Annotated[
    str | None, typer.Option(help="name of the model in the API (default: MODEL); of several, MODEL=NAME each")
]
Connections = Annotated[int, typer.Option(min=1, help="connections in all")]
ProfileOption = Annotated[
    Profile,
    typer.Option(help="throughput: HAProxy in front of the routers, and chunks of four tokens"),
]
LimitsFile = Annotated[
    Path | None, typer.Option(help="YAML with the routers' limits, which `rayinfer limits` changes later")
]
RequestLimitsFile = Annotated[
    Path | None, typer.Option(help="YAML with what one request may ask for (max_n, max_logprobs, max_stop_strings ...)")
]
TrustTemplate = Annotated[
    bool,
    typer.Option("--trust-request-chat-template", help="render the chat templates, programs, that requests bring"),
]
AutoscalingFile = Annotated[
    Path | None, typer.Option(help="YAML with the objectives by which the number of engines follows the load")
]
RayAddress = Annotated[
    str | None, typer.Option(help="attach to this Ray cluster instead of starting one (auto, or HOST:PORT)")
]
RequestTimeout = Annotated[
    float | None, typer.Option(min=0.001, help="limit of a request in seconds, with its time in the queue")
]
EngineControl = Annotated[
    bool,
    typer.Option(
        "--enable-engine-control",
        help="HTTP paths, and the web page's buttons, that pause, drain, scale and reload engines: for keys with the "
        "scope operate, or without keys for clients on this machine",
    ),
]
PerAddress = Annotated[int, typer.Option(min=1, help="connections from one address")]
IdleConnections = Annotated[int, typer.Option(min=1, help="connections without a request; the oldest are closed first")]
UnfinishedRequests = Annotated[int, typer.Option(min=1, help="requests with an incomplete head or body")]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="port of gRPC (KServe v2); 0: none (default: the one after --port, where that is free; none with "
        "--ray-address)",
    ),
]
WithExamples = Annotated[
    bool, typer.Option("--with-examples", help="serve the tensor models simple and identity as well")
]
ShutdownGrace = Annotated[
    float,
    typer.Option(min=0.0, help="seconds for open requests to finish after Ctrl-C or SIGTERM; others end with an error"),
]
Host = Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 accepts other machines")]
Replicas = Annotated[str | None, typer.Option(help="number of engines: N, or MIN:MAX to follow the load (default: 1)")]
Roles = Annotated[
    str | None,
    typer.Option(
        help="prefill engines for long prompts and decode engines for what follows, as prefill=1,decode=2; with"
        " --kv-store-gib (default: every engine does both)",
    ),
]
TrustTenantHeader = Annotated[
    bool,
    typer.Option(
        "--trust-tenant-header",
        help="take a request's tenant from x-tenant-id (only behind a gateway that sets it)",
    ),
]
ToolFormatOption = Annotated[
    ToolFormatName | None,
    typer.Option(help="format of the models' tool calls (default: what their chat templates show)"),
]
PrioritizeEngines = Annotated[
    bool,
    typer.Option(help="lower the priority of Ray's processes that pass no tokens (not with --ray-address)"),
]


@leave_at_once
@in_one_line
@with_engine_options
@with_access_options
@with_prediction_cache_options
@with_batch_options
@with_adapter_options
def serve(
    model: Models = None,
    port: Port = 8000,
    grpc_port: GrpcPort = None,
    host: Host = "127.0.0.1",
    replicas: Replicas = None,
    autoscaling: AutoscalingFile = None,
    roles: Roles = None,
    routers: Annotated[int, typer.Option(min=1, help="number of router processes, which answer clients")] = 1,
    profile: ProfileOption = Profile.LATENCY,
    limits: LimitsFile = None,
    request_limits: RequestLimitsFile = None,
    trust_request_chat_template: TrustTemplate = False,
    name: ModelName = None,
    tool_format: ToolFormatOption = None,
    ray_address: RayAddress = None,
    request_timeout: RequestTimeout = None,
    max_connections: Connections = DEFAULT_CONNECTION_LIMITS.max_connections,
    max_connections_per_address: PerAddress = DEFAULT_CONNECTION_LIMITS.max_connections_per_address,
    max_idle_connections: IdleConnections = DEFAULT_CONNECTION_LIMITS.max_idle_connections,
    max_unfinished_requests: UnfinishedRequests = DEFAULT_CONNECTION_LIMITS.max_unfinished_requests,
    trace_requests: Annotated[bool, typer.Option(help="keep the events of each request for ten minutes")] = True,
    trust_tenant_header: TrustTenantHeader = False,
    enable_engine_control: EngineControl = False,
    with_examples: WithExamples = False,
    prioritize_engines: PrioritizeEngines = True,
    shutdown_grace: ShutdownGrace = 10.0,
    application_settings: dict[str, Any] = {},  # noqa: B006 - filled by the decorators of groups of options
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Serve models over HTTP (OpenAI, TGI, KServe v1 and v2, Megatron) and gRPC (KServe v2) until Ctrl-C."""
    service = Service(
        models=_named_models(model or [DEFAULT_MODEL], name),
        host=host,
        port=port,
        grpc_port=grpc_port,
        model_settings=engines_asked_for(replicas, autoscaling, roles) | {"tool_format": tool_format},
        routers=routers,
        profile=profile,
        limits=profile.limits | ({} if limits is None else mapping_in(limits)),
        ray_address=ray_address,
        prioritize_engines=prioritize_engines,
        shutdown_grace_s=shutdown_grace,
        options={
            "request_timeout_s": request_timeout,
            "trace_requests": trace_requests,
            "enable_engine_control": enable_engine_control,
            "trust_tenant_header": trust_tenant_header,
            "trust_request_chat_template": trust_request_chat_template,
            "request_limits": _request_limits(request_limits),
            "with_examples": with_examples,
            "max_connections": max_connections,
            "max_connections_per_address": max_connections_per_address,
            "max_idle_connections": max_idle_connections,
            "max_unfinished_requests": max_unfinished_requests,
            **_with_batches_folder(application_settings, port),
        },
        settings=profile.engine_settings | engine_settings,
    )
    _start_in_environment(service)


def _with_batches_folder(settings: dict[str, Any], port: int) -> dict[str, Any]:
    """Give a service whose settings name no folder of batches one of its port's."""
    return {"batches_folder": str(default_batches_folder() / str(port)), **settings}


def _start_in_environment(service: Service) -> None:
    """Start the service with the settings that Ray reads from the environment."""
    interrupt_on_signals()
    with contextlib.ExitStack() as files:
        more = files.enter_context(haproxy_files(service.host)) if service.has_haproxy else {}
        set_ray_settings(owns_ray=service.ray_address is None, more=(THROUGHPUT_SETTINGS | more) if more else {})
        _start(service)


def _request_limits(file: Path | None) -> dict[str, Any]:
    return checked_request_limits({} if file is None else mapping_in(file)).model_dump()


def _start(service: Service) -> None:
    """Check what can be checked before Ray is started, which takes seconds, and run the service."""
    # After the environment is set: these import Ray, which reads it.
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.models.generation_config import default_sampling_params
    from rayinfer_deployments.cli.serve import check_port_is_free, choose_grpc_port

    configs = [engine_config(model=model, **service.settings) for model in service.models.values()]
    router_limits(service.limits)
    check_port_is_free(service.host, service.port)
    adapters = models_with_adapters(list(service.models), service.options)
    service = replace(service, grpc_port=choose_grpc_port(service), adapters=adapters)
    folders = {name: resolve_model(model) for name, model in service.models.items()}
    for config, folder in zip(configs, folders.values(), strict=True):
        default_sampling_params(config, folder)  # an engine would find errors only after Ray's start
    with QuietTerminal(cache_folder() / "services" / f"{service.port}.log") as console:
        run_service(service, folders, console)


def _named_models(models: Sequence[str], name: str | None) -> dict[str, str]:
    """Return the models by their names in the API; raises RayinferError where a name is missing or there twice."""
    if name is not None:
        if len(models) > 1:
            raise RayinferError(f"--name names one model, got {len(models)}: write MODEL=NAME for each")
        return {name: models[0]}
    named: dict[str, str] = {}
    for given in models:
        model, served_name = _split_name(given)
        if not served_name:
            raise RayinferError(f"{given!r} has no name behind the =")
        if served_name in named:
            raise RayinferError(f"two models have the name {served_name!r}: write MODEL=NAME for one of them")
        named[served_name] = model
    return named


def _split_name(given: str) -> tuple[str, str]:
    """Split MODEL=NAME; the default name is a folder's name, a file's stem, else the model as asked for."""
    path = Path(given).expanduser()
    if path.is_file():
        return given, path.resolve().stem
    if path.is_dir():
        return given, path.resolve().name
    model, equals, name = given.rpartition("=")
    return (model, name) if equals else (given, given)


def choose_grpc_port(service: Service) -> int | None:
    """Return the port of gRPC: the one asked for, or the next after the service's; None for none.

    Raises RayinferError when another process has the one asked for. Routers in a cluster that is attached to may be on
    other nodes: without being asked for they open no port there.
    """
    if service.grpc_port is not None:
        if service.grpc_port == service.port:
            raise RayinferError(f"--grpc-port and --port must differ, got {service.port} for both")
        if service.grpc_port:
            check_port_is_free(service.host, service.grpc_port, option="--grpc-port")
        return service.grpc_port or None
    next_port = service.port + 1
    if service.ray_address is not None or next_port > MAX_PORT:
        return None
    try:
        check_port_is_free(service.host, next_port)
    except RayinferError:
        return None
    return next_port


def check_port_is_free(host: str, port: int, *, option: str = "--port") -> None:
    """Raise RayinferError when another process has the port.

    Serve shares ports: without this check two services would answer alternately.
    """
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(address[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError as error:
        option = option if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise RayinferError(f"cannot listen on {host}:{port}: {error.strerror}; choose another {option}") from None
