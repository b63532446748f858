"""Settings that Ray and Ray Serve read from the environment only, in one place."""

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psutil

from rayinfer_deployments.cluster.ray_token import default_token_path


class Profile(StrEnum):
    """Objective that Serve's and the routers' settings are tuned for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"

    @property
    def limits(self) -> dict[str, int]:
        """Return the routers' default settings."""
        return {"stream_interval": 4} if self is Profile.THROUGHPUT else {}

    @property
    def engine_settings(self) -> dict[str, float]:
        """Return the engines' default settings, those of models that do not generate."""
        return {"target_step_ms": 100.0, "max_wait_ms": 50.0} if self is Profile.THROUGHPUT else {}


# Ray reads them when it is imported, and every process that it starts inherits them. A user's own value wins.
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_SERVE_LOG_TO_STDERR": "0",  # log files only: the terminal is the progress display's
    # A dead HTTP proxy is noticed in seconds; with the defaults the port stays deaf for half a minute.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.5",  # the third failure counts
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    # A frozen replica is ended at once: waiting for it to stop politely would leave its streams hanging.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # A busy two-core machine answers queue-length probes late; a probe that times out only delays the request.
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "1",
    "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": "16777216",
    # The proxies bound nothing and obey clients' headers. An attached Ray's processes have their own environment.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "rayinfer_deployments.router.proxy_middlewares.proxy_middlewares",
}

# Ray takes 127.0.0.1 for the node's address, and listens there alone. In spite of its name the variable has this effect
# on every system.
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

OWN_RAY_SETTINGS = LOOPBACK_ONLY | {
    # A Ray of our own requires its token, which lies in the user's home folder.
    "RAY_AUTH_MODE": "token",
    # The first workers import what they will need before they are asked to do anything.
    "RAY_preload_python_modules": "rayinfer_deployments.cluster.worker_imports",
    # Ray's own default puts engines behind everything else on the machine, its log readers too.
    "RAY_worker_niceness": "0",
    # The router is the only code in its replica: a second event loop would cost a hop between threads per chunk.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}

# What these change is seen only where Ray writes.
OWN_OUTPUT = ("RAY_USAGE_STATS_ENABLED", "RAY_SERVE_LOG_TO_STDERR")

# What a cluster loses that lacks a setting; the others are a matter of taste.
WITHOUT = {
    "RAY_AUTH_MODE": "any client of its ports can run programs on it",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "a dead HTTP proxy is replaced after half a minute only",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "a frozen HTTP proxy is replaced late",
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "a frozen engine keeps its memory until its grace has ended",
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "requests to a busy machine are delayed",
    "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": "gRPC messages of up to 2 GiB are taken",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "the HTTP proxies take bodies of any size and obey clients' headers",
}

# What is gained per request is paid with more processes and ports: HAProxy in front, which shares connections out.
THROUGHPUT_SETTINGS = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Routers that leave stay reachable for so long, until HAProxy has heard of it.
    "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "2",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    # Every change of the routers starts another HAProxy; the last one may still have streams of an hour.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
}


def haproxy_settings(folder: str, metrics_port: int, stats_port: int) -> dict[str, str]:
    """Make the settings by which HAProxy keeps its files in `folder`: services of one machine must not share them.

    The path may have 30 characters at most, of the 97 that HAProxy lets a socket's path have.
    """
    return {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{folder}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{folder}/admin.sock",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{folder}/metrics.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{folder}/server-state",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        # A socket without a reader: what Serve would have it log to is a UDP port, for which it opens one of its own.
        "RAY_SERVE_HAPROXY_LOG_TARGET": f"{folder}/log.sock",
    }


def cluster_settings(*, throughput: bool) -> dict[str, str]:
    """List the settings that an existing cluster's environment should have, on every node."""
    auth = {"RAY_AUTH_MODE": OWN_RAY_SETTINGS["RAY_AUTH_MODE"]}
    return auth | RAY_SETTINGS | (THROUGHPUT_SETTINGS if throughput else {})


def missing_settings(environment: Mapping[str, str], *, throughput: bool) -> list[str]:
    """List, one line each, the settings that an environment lacks; other values are taken as chosen."""
    wanted = cluster_settings(throughput=throughput)
    missing = [name for name in wanted if name not in environment and name not in OWN_OUTPUT]
    return [f"{name}={wanted[name]}" + (f": {WITHOUT[name]}" if name in WITHOUT else "") for name in missing]


def set_ray_settings(*, owns_ray: bool, more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Put the settings into this process's environment; call it before the first import of ray."""
    for name, value in (RAY_SETTINGS | (OWN_RAY_SETTINGS if owns_ray else {}) | dict(more)).items():
        os.environ.setdefault(name, value)
    if _has_token():
        # Used where there is one: Ray starts clusters with a token where there is one, but joins them without.
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def started_ray_address() -> str | None:
    """Read which Ray this user's programs would join: RAY_ADDRESS, or the last that `ray start` has started here."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text().strip() or None
    except OSError:
        return None


class TlsFiles(NamedTuple):
    """Paths of PEM files."""

    certificate: str
    key: str
    authority: str


def ray_tls_files() -> TlsFiles | None:
    """Name the files with which this process's Ray speaks TLS; None where it does not."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
    return TlsFiles(*(os.environ[name] for name in names))  # without one of them Ray does not start


def settings_of_ray() -> dict[str, str]:
    """Read all settings of Ray and Ray Serve from this process's environment."""
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_")}


def show_only_gpus(ids: Sequence[str]) -> None:
    """Make only these GPUs visible to CUDA, in this order; call it before CUDA is used.

    Ray does the same for a process that has asked for some, unless RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES is set,
    but shows all GPUs to one that has asked for none.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(ids)


def use_interface_of(address: str) -> None:
    """Have NCCL use the network interface of one of this node's addresses, unless the environment names another.

    NCCL itself would take the first that it finds. Call it before CUDA is used.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # this very name, no prefix of others
            return


def lacks_token() -> bool:
    """Return whether Ray would end this process for want of a token."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token" and not _has_token()


def _has_token() -> bool:
    """Return whether Ray would find a token where it looks for one."""
    named = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return named or default_token_path().exists()
