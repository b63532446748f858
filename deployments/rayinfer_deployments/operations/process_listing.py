"""Processes of a service with the role and load of each, from Ray's actor table and /metrics."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
from prometheus_client.parser import text_string_to_metric_families
from ray._raylet import GcsClientOptions, GlobalStateAccessor  # type: ignore[attr-defined]  # its stubs are partial
from ray.core.generated import gcs_pb2

from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.control_client import ask
from rayinfer_deployments.cluster.process_tree import descendants
from rayinfer_deployments.cluster.service_record import ServiceRecord
from rayinfer_deployments.discovery.engine_address import ENGINE_PREFIX, RankName
from rayinfer_deployments.router import batch_owner_actor
from rayinfer_deployments.router.access_owner_actor import ACTOR_PREFIX

Role = Literal["proxy", "controller", "access_owner", "batch_owner", "router", "engine_replica", "engine"]

ROLE_ORDER: tuple[Role, ...] = (
    "controller",
    "proxy",
    "access_owner",
    "batch_owner",
    "router",
    "engine_replica",
    "engine",
)
REPLICA_PREFIX = "SERVE_REPLICA::"  # Serve names a replica's actor so, then application#deployment#replica
PROXY_CLASSES = ("ProxyActor", "HAProxyManager")  # the second one starts and updates HAProxy
RESPONSE_TIMEOUT_S = 10.0  # of a service's process
LOAD_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceProcess:
    """One process of a service."""

    pid: int
    role: Role
    rank: int | None = None  # within its group, of an engine
    group: str | None = None  # the engine's processes share one
    replica: str | None = None  # the Serve replica that it is, or that owns it
    load: int | None = None  # requests that it runs or keeps waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """A living actor in Ray's actor table."""

    pid: int
    class_name: str
    name: str


def list_processes(record: ServiceRecord) -> list[ServiceProcess]:
    """List a running service's processes; raises RayinferError when its Ray does not answer."""
    actors = read_actors(record.ray_address)
    if record.owns_ray:
        ours = {process.pid for process in descendants(record.pid)}
        actors = [actor for actor in actors if actor.pid in ours]
    return identify(actors, record.application, ask_loads(record.control_socket) or read_loads(record.base_url))


def list_deployed_processes(ray_address: str, application: str, report: Mapping[str, Any]) -> list[ServiceProcess]:
    """List the processes of a service on a Ray of several machines, on all of them, given its answer to `status`."""
    return identify(read_actors(ray_address), application, loads_in(report))


def identify(actors: Iterable[Actor], application: str, loads: dict[str, int]) -> list[ServiceProcess]:
    """Pick the application's processes out of a cluster's actors; `loads` are by engine, and by "router"."""
    actors = list(actors)
    replicas = {
        actor.name.rpartition("#")[2] for actor in actors if actor.name.startswith(f"{REPLICA_PREFIX}{application}#")
    }
    found = [process for actor in actors if (process := _identify(actor, application, replicas, loads)) is not None]
    return sorted(found, key=lambda process: (ROLE_ORDER.index(process.role), process.replica or "", process.rank or 0))


def _identify(actor: Actor, application: str, replicas: set[str], loads: dict[str, int]) -> ServiceProcess | None:
    if actor.class_name == "ServeController":
        return ServiceProcess(pid=actor.pid, role="controller")
    if actor.class_name in PROXY_CLASSES:
        return ServiceProcess(pid=actor.pid, role="proxy")
    if actor.name == f"{ACTOR_PREFIX}{application}":
        return ServiceProcess(pid=actor.pid, role="access_owner")
    if actor.name == f"{batch_owner_actor.ACTOR_PREFIX}{application}":
        return ServiceProcess(pid=actor.pid, role="batch_owner")
    if actor.name.startswith(f"{REPLICA_PREFIX}{application}#"):
        _, deployment, replica = actor.name.split("#", 2)
        if deployment == "router":
            return ServiceProcess(
                pid=actor.pid, role="router", replica=replica, load=loads.get(replica, loads.get("router"))
            )
        return ServiceProcess(pid=actor.pid, role="engine_replica", group=ENGINE_PREFIX + replica, replica=replica)
    return _identify_rank(actor, replicas, loads) if actor.name.startswith(ENGINE_PREFIX) else None


def _identify_rank(actor: Actor, replicas: set[str], loads: dict[str, int]) -> ServiceProcess | None:
    name = RankName.of(actor.name)
    replica = name.engine.removeprefix(ENGINE_PREFIX)
    if replica not in replicas:
        return None
    load = loads.get(name.engine) if name.rank == 0 else None  # requests are counted once
    return ServiceProcess(pid=actor.pid, role="engine", rank=name.rank, group=name.engine, replica=replica, load=load)


def read_actors(ray_address: str) -> list[Actor]:
    """Read a cluster's living actors, without joining it."""
    # A nil cluster id is allowed: this reader belongs to no cluster.
    options = GcsClientOptions.create(ray_address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    accessor = GlobalStateAccessor(options)
    if not accessor.connect():
        raise RayinferError(f"Ray at {ray_address} does not answer")
    rows = [gcs_pb2.ActorTableData.FromString(row) for row in accessor.get_actor_table(None, None)]
    return [
        Actor(pid=row.pid, class_name=row.class_name, name=row.name)
        for row in rows
        if row.state == gcs_pb2.ActorTableData.ActorState.ALIVE
    ]


def ask_loads(control_socket: Path) -> dict[str, int]:
    """Ask a service's process how many requests each engine has, and each router by its replica; or nothing."""
    try:
        return loads_in(ask(control_socket, "status", timeout_s=RESPONSE_TIMEOUT_S))
    except RayinferError:
        return {}


def loads_in(report: Mapping[str, Any]) -> dict[str, int]:
    """Add up the requests of each engine, and of each router by its replica, in an answer to `status`."""
    routers = report["routers"]
    loads = {router["name"]: sum(model["num_waiting"] for model in router["models"]) for router in routers}
    engines = [engine for router in routers for model in router["models"] for engine in model["engines"]]
    return loads | {engine["name"]: engine["num_running"] + engine["num_waiting"] for engine in engines}


def read_loads(base_url: str) -> dict[str, int]:
    """Read the number of requests of each engine and of the router from /metrics; empty without an answer."""
    try:
        text = httpx.get(f"{base_url}/metrics", timeout=2.0, trust_env=False, verify=False).raise_for_status().text
    except httpx.HTTPError:
        return {}
    loads: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        if family.name in LOAD_GAUGES:
            for sample in family.samples:
                engine = sample.labels.get("engine", "")
                loads[engine] = loads.get(engine, 0) + int(sample.value)
    return loads
