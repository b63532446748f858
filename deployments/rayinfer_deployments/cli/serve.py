"""`rayinfer serve`: a model behind an OpenAI-compatible port, until Ctrl-C."""

import contextlib
import errno
import socket
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rayinfer.config import DEFAULT_MODEL, cache_folder, engine_config
from rayinfer.errors import RayinferError
from rayinfer.routing.limits import router_limits
from rayinfer_deployments.cli.config_options import with_engine_options
from rayinfer_deployments.cli.control.limits import mapping_in
from rayinfer_deployments.cli.control.scale import engines_asked_for
from rayinfer_deployments.cli.failures import in_one_line, interrupt_on_signals, leave_at_once
from rayinfer_deployments.cli.service_run import Service, run_service
from rayinfer_deployments.cli.terminal import QuietTerminal
from rayinfer_deployments.cluster.haproxy_files import haproxy_files
from rayinfer_deployments.cluster.ray_environment import THROUGHPUT_SETTINGS, Profile, set_ray_settings
from rayinfer_deployments.router.connection_limits import DEFAULT_CONNECTION_LIMITS

MAX_PORT = 65535

ProfileOption = Annotated[
    Profile,
    typer.Option(help="throughput: HAProxy in front of the routers, and chunks of four tokens"),
]
LimitsFile = Annotated[
    Path | None, typer.Option(help="YAML with the routers' limits, which `rayinfer limits` changes later")
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
        "--enable-engine-control", help="HTTP paths that pause engines and put them to sleep, open to all clients"
    ),
]
PerAddress = Annotated[int, typer.Option(min=1, help="connections from one address")]
IdleConnections = Annotated[int, typer.Option(min=1, help="connections without a request; the oldest are closed first")]
UnfinishedRequests = Annotated[int, typer.Option(min=1, help="requests with an incomplete head or body")]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="port of gRPC; 0: none (default: the one after --port, 8001, where that is free)"
    ),
]
WithExamples = Annotated[
    bool, typer.Option("--with-examples", help="serve the tensor models simple and identity as well")
]
Host = Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 accepts other machines")]
Replicas = Annotated[str | None, typer.Option(help="number of engines: N, or MIN:MAX to follow the load (default: 1)")]
TrustTenantHeader = Annotated[
    bool,
    typer.Option(
        "--trust-tenant-header",
        help="take a request's tenant from x-tenant-id (only behind a gateway that sets it)",
    ),
]
PrioritizeEngines = Annotated[
    bool,
    typer.Option(help="lower the priority of Ray's processes that pass no tokens (not with --ray-address)"),
]


@leave_at_once
@in_one_line
@with_engine_options
def serve(
    model: Annotated[
        str, typer.Argument(help="folder, GGUF file, Hugging Face repository or embedded name")
    ] = DEFAULT_MODEL,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port of the API")] = 8000,
    grpc_port: GrpcPort = None,
    host: Host = "127.0.0.1",
    replicas: Replicas = None,
    autoscaling: AutoscalingFile = None,
    routers: Annotated[int, typer.Option(min=1, help="number of router processes")] = 1,
    profile: ProfileOption = Profile.LATENCY,
    limits: LimitsFile = None,
    name: Annotated[str | None, typer.Option(help="name of the model in the API (default: MODEL)")] = None,
    ray_address: RayAddress = None,
    request_timeout: RequestTimeout = None,
    max_connections: Annotated[
        int, typer.Option(min=1, help="connections in all")
    ] = DEFAULT_CONNECTION_LIMITS.max_connections,
    max_connections_per_address: PerAddress = DEFAULT_CONNECTION_LIMITS.max_connections_per_address,
    max_idle_connections: IdleConnections = DEFAULT_CONNECTION_LIMITS.max_idle_connections,
    max_unfinished_requests: UnfinishedRequests = DEFAULT_CONNECTION_LIMITS.max_unfinished_requests,
    trace_requests: Annotated[bool, typer.Option(help="keep the events of each request for ten minutes")] = True,
    trust_tenant_header: TrustTenantHeader = False,
    enable_engine_control: EngineControl = False,
    with_examples: WithExamples = False,
    prioritize_engines: PrioritizeEngines = True,
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Serve a model over the OpenAI API until Ctrl-C."""
    interrupt_on_signals()
    service = Service(
        model=model,
        name=name or _served_name(model),
        host=host,
        port=port,
        grpc_port=grpc_port,
        engines=engines_asked_for(replicas, autoscaling),
        routers=routers,
        profile=profile,
        limits=profile.limits | ({} if limits is None else mapping_in(limits)),
        ray_address=ray_address,
        prioritize_engines=prioritize_engines,
        options={
            "request_timeout_s": request_timeout,
            "trace_requests": trace_requests,
            "enable_engine_control": enable_engine_control,
            "trust_tenant_header": trust_tenant_header,
            "with_examples": with_examples,
            "max_connections": max_connections,
            "max_connections_per_address": max_connections_per_address,
            "max_idle_connections": max_idle_connections,
            "max_unfinished_requests": max_unfinished_requests,
        },
        settings=engine_settings,
    )
    with contextlib.ExitStack() as files:
        more = files.enter_context(haproxy_files(service.host)) if service.has_haproxy else {}
        set_ray_settings(owns_ray=ray_address is None, more=(THROUGHPUT_SETTINGS | more) if more else {})
        _start(service)


def _start(service: Service) -> None:
    """Check what can be checked before Ray is started, which takes seconds, and run the service."""
    # After the environment is set: these import Ray, which reads it.
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.models.generation_config import default_sampling_params
    from rayinfer_deployments.cli.serve import check_port_is_free, choose_grpc_port

    config = engine_config(model=service.model, **service.settings)
    router_limits(service.limits)
    check_port_is_free(service.host, service.port)
    service = replace(service, grpc_port=choose_grpc_port(service))
    folder = resolve_model(service.model)
    default_sampling_params(config, folder)  # an engine would find errors only after Ray's start
    with QuietTerminal(cache_folder() / "services" / f"{service.port}.log") as console:
        run_service(service, folder, console)


def _served_name(model: str) -> str:
    """Return the model's default name: a folder's name, a file's stem, else the model as asked for."""
    path = Path(model).expanduser()
    return path.resolve().stem if path.is_file() else path.resolve().name if path.is_dir() else model


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
