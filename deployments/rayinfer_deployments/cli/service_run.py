"""Life of a service from the start of its Ray to Ctrl-C: start and announcement."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rayinfer_deployments.cli.checked_folders import check_folder
from rayinfer_deployments.cli.service_watch import watch
from rayinfer_deployments.cli.terminal import Phases
from rayinfer_deployments.cluster.haproxy_files import LOOPBACK
from rayinfer_deployments.cluster.ray_environment import Profile

if TYPE_CHECKING:
    from ray.serve import Application

    from rayinfer_deployments.app_args import LLMAppArgs
    from rayinfer_deployments.cluster.attached_cluster import AttachedCluster
    from rayinfer_deployments.cluster.managed_cluster import ManagedCluster

    Cluster = ManagedCluster | AttachedCluster

APPLICATION = "rayinfer"
POLL_S = 0.2
ALL_ROUTERS_S = 30.0  # for the last router after the first
CAPACITIES_S = 5.0  # for lines that only inform operators


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """Arguments of `rayinfer serve`."""

    models: dict[str, str]  # by their names in the API
    host: str
    port: int
    grpc_port: int | None
    model_settings: dict[str, Any]  # of each model beside its engines' settings
    routers: int
    profile: Profile
    limits: dict[str, Any]
    ray_address: str | None
    prioritize_engines: bool
    shutdown_grace_s: float
    options: dict[str, Any]  # of the application: what it does for each request
    settings: dict[str, Any]  # of the engines
    adapters: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings of models that have some, by name

    @property
    def has_haproxy(self) -> bool:
        """Return whether the service has an HAProxy of its own in front of its routers."""
        return self.profile == Profile.THROUGHPUT and self.ray_address is None

    @property
    def has_tls(self) -> bool:
        """Return whether clients connect by TLS."""
        return self.options.get("tls_cert") is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Serve application, and the arguments that it was built from."""

    args: "LLMAppArgs"
    application: "Application"


def run_service(service: Service, folders: Mapping[str, Path], console: Console) -> None:
    """Start the service and run until it fails or is interrupted; raises KeyboardInterrupt before it is ready."""
    from rayinfer_deployments.cluster.imports_without_gc import no_collection

    with no_collection():
        from rayinfer_deployments.cluster.background_call import BackgroundCall
        from rayinfer_deployments.cluster.managed_cluster import ManagedCluster
        from rayinfer_deployments.cluster.process_priority import deprioritize_background_processes
        from rayinfer_deployments.operations.freed_stores import freed_stores

    phases, is_ready = Phases(console), False
    phases.enter("starting Ray" if service.ray_address is None else "attaching to Ray")
    try:
        with phases:
            preparing = BackgroundCall(lambda: _prepare(service, folders))  # imports much while Ray's processes come up

            def check() -> None:
                preparing.raise_if_failed()
                if service.prioritize_engines and service.ray_address is None:
                    deprioritize_background_processes(os.getpid())

            cluster = ManagedCluster(check) if service.ray_address is None else _attached(service.ray_address, check)
            freed = freed_stores(service.settings) if service.ray_address is None else contextlib.nullcontext()
            with freed, cluster, _recorded(service, cluster):
                prepared = _reserved(preparing.result(), phases, owns_ray=cluster.owns_ray)
                missing = _missing_settings(service, cluster)
                for setting in missing:
                    phases.note(f"Ray's environment lacks {setting}")
                with _controlled(service, prepared.args, missing):
                    _forget_loaded_adapters(owns_ray=cluster.owns_ray)
                    _bring_up(service, cluster, prepared, phases)
                    is_ready = True
                    _announce(service, console)
                    watch(service, cluster, APPLICATION, console)
    except KeyboardInterrupt:
        console.print("stopped")
        if not is_ready:
            raise


def _attached(address: str, check: Callable[[], None]) -> "AttachedCluster":
    from rayinfer_deployments.cluster.attached_cluster import AttachedCluster

    return AttachedCluster(address, APPLICATION, check)


def _prepare(service: Service, folders: Mapping[str, Path]) -> Prepared:
    from rayinfer_deployments.cluster.imports_without_gc import no_collection

    with no_collection():
        from rayinfer_deployments.app_args import llm_app_args
        from rayinfer_deployments.applications import build_llm_app
        from rayinfer_deployments.cluster.service_record import control_socket_path

    for folder in folders.values():
        check_folder(folder)
    listens_itself = service.ray_address is None and not service.has_haproxy
    listen: dict[str, Any] = {"listen_host": service.host, "grpc_port": service.grpc_port}
    if listens_itself:
        listen["listen_port"] = service.port
    listen["control_socket"] = str(control_socket_path(service.port))
    models = [
        {
            "name": name,
            "model": str(folder),
            **service.model_settings,
            **service.settings,
            **service.adapters.get(name, {}),
        }
        for name, folder in folders.items()
    ]
    args = llm_app_args(
        {
            "models": models,
            "limits": service.limits,
            "num_routers": service.routers,
            **service.options,
            **listen,
        }
    )
    return Prepared(args=args, application=build_llm_app(args))


def _reserved(prepared: Prepared, phases: Phases, *, owns_ray: bool) -> Prepared:
    """Reserve what the running cluster has: a GPU for each rank of engines with several, and CPUs for all engines."""
    from rayinfer_deployments.applications import build_llm_app
    from rayinfer_deployments.cluster.managed_cluster import count_resource
    from rayinfer_deployments.reservations import with_cpus_that_fit, with_gpus_for_ranks

    args = prepared.args
    if any(model.num_ranks > 1 for model in args.models) and (num_gpus := count_resource("GPU")):
        args = with_gpus_for_ranks(args, num_gpus)
        if args == prepared.args:
            phases.note(f"Ray has {num_gpus:g} GPUs, too few for a GPU per rank: the ranks compute on CPUs")
    if owns_ray:  # nobody else reserves anything there
        args = with_cpus_that_fit(args, count_resource("CPU"))
    return prepared if args == prepared.args else Prepared(args=args, application=build_llm_app(args))


def _missing_settings(service: Service, cluster: "Cluster") -> list[str]:
    """List the settings that the environment of a joined Ray lacks; each line once, whatever the node."""
    from rayinfer_deployments.cluster.ray_environment import missing_settings

    throughput = service.profile == Profile.THROUGHPUT
    found = [missing_settings(node, throughput=throughput) for node in cluster.environments()]
    return list(dict.fromkeys(line for lines in found for line in lines))


def _controlled(service: Service, args: "LLMAppArgs", missing: list[str]) -> AbstractContextManager[object]:
    """Serve other commands on the control socket."""
    from rayinfer_deployments.cluster.service_record import control_socket_path
    from rayinfer_deployments.operations.control_socket import ControlSocket
    from rayinfer_deployments.operations.service_operations import ServiceOperations

    operations = ServiceOperations(APPLICATION, args, missing_settings=missing)
    return ControlSocket(control_socket_path(service.port), operations.by_name())


def _forget_loaded_adapters(*, owns_ray: bool) -> None:
    """Begin with the settings' adapters, whatever operators of an earlier service in this Ray have loaded."""
    from rayinfer_deployments.router.adapters.ray_adapter_table import RayAdapterTable

    if not owns_ray:
        RayAdapterTable(APPLICATION).clear()


def _bring_up(service: Service, cluster: "Cluster", prepared: Prepared, phases: Phases) -> None:
    from rayinfer_deployments.cli.start_lines import LOADING, StartLines
    from rayinfer_deployments.engine.start_reports import StartReports, reports_path
    from rayinfer_deployments.operations.service_startup import deploy, wait_until_ready

    phases.enter("starting the service")
    host = LOOPBACK if service.has_haproxy else service.host  # the routers' ports lie behind HAProxy's
    num_processes = sum(model.most_replicas * model.num_ranks for model in prepared.args.models)
    lines, has_reports = StartLines(phases, num_processes=num_processes), False
    with StartReports(reports_path(cluster.address)) as reports:
        with_proxy = not cluster.owns_ray or service.has_haproxy
        deploy(prepared.application, APPLICATION, host, service.port, with_proxy=with_proxy)

        def check() -> None:
            nonlocal has_reports
            cluster.check()
            new = reports.new()
            has_reports = has_reports or bool(new)
            lines.show(new)

        def on_progress(reason: str) -> None:
            phases.enter(LOADING)
            if not has_reports:  # which have more detail
                phases.explain(reason)

        wait_until_ready(
            APPLICATION,
            service.host,
            service.port,
            check,
            on_progress,
            has_tls=service.has_tls,
            is_ready=(lambda: _are_routers_ready(service, 1)) if service.options.get("tls_client_ca") else None,
        )
        lines.show(reports.new())
    if service.routers > 1:
        _wait_for_all_routers(service, cluster)
    phases.finish()


def _wait_for_all_routers(service: Service, cluster: "Cluster") -> None:
    """Wait until each router knows an engine: /ready covers only the router that answers."""
    latest = time.monotonic() + ALL_ROUTERS_S
    while time.monotonic() < latest:
        cluster.check()
        if _are_routers_ready(service, service.routers):
            return
        time.sleep(POLL_S)


def _are_routers_ready(service: Service, num_routers: int) -> bool:
    from rayinfer_deployments.cluster.control_client import ask
    from rayinfer_deployments.cluster.service_record import control_socket_path

    routers = ask(control_socket_path(service.port), "status", timeout_s=ALL_ROUTERS_S)["routers"]
    return len(routers) >= num_routers and all(model["ready"] for router in routers for model in router["models"])


def _recorded(service: Service, cluster: "Cluster") -> AbstractContextManager[object]:
    from rayinfer_deployments.cluster.service_record import recorded

    return recorded(
        host=service.host,
        port=service.port,
        models=list(service.models),
        ray_address=cluster.address,
        owns_ray=cluster.owns_ray,
        application=APPLICATION,
        has_tls=service.has_tls,
        key_file=service.options.get("api_keys"),
    )


def _announce(service: Service, console: Console) -> None:
    from rayinfer_deployments.cluster.service_record import service_url

    url = service_url(service.host, service.port, has_tls=service.has_tls)
    console.print(
        f"ready: {', '.join(service.models)} at {url}/v1 (Ctrl-C ends it)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"web page: {url}/", markup=False, highlight=False, soft_wrap=True)
    if service.grpc_port is not None:
        over = " over TLS" if service.has_tls else ""
        line = f"gRPC{over} at {service.host}:{service.grpc_port}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    # One line each, however narrow the terminal: a wrapped command cannot be pasted.
    for line in _described(service, url):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _described(service: Service, url: str) -> list[str]:
    """Query the engines' sizes and defaults, unless no router reports soon, and end with an example of a request."""
    from rayinfer.errors import RayinferError
    from rayinfer_deployments.cli.start_lines import capacity_lines, default_lines, example_command
    from rayinfer_deployments.cluster.control_client import ask
    from rayinfer_deployments.cluster.service_record import control_socket_path

    first, has_keys = next(iter(service.models)), bool(service.options.get("api_keys"))
    lines: list[str] = []
    tasks: list[str] = []
    latest = time.monotonic() + CAPACITIES_S
    with contextlib.suppress(RayinferError):
        while time.monotonic() < latest:  # Serve's handles learn of a new router a moment later
            status = ask(control_socket_path(service.port), "status", timeout_s=CAPACITIES_S)
            if capacities := capacity_lines(status):
                lines = [*capacities, *default_lines(status)]
                models = [model for router in status["routers"] for model in router["models"]]
                tasks = next((model["tasks"] for model in models if model["name"] == first), [])
                break
            time.sleep(POLL_S)
    example = example_command(url, first, tasks, has_keys=has_keys, has_one_model=len(service.models) == 1)
    return [*lines, example]
