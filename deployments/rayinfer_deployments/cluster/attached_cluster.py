"""An existing Ray cluster that a service attaches to and leaves running."""

import socket
from collections.abc import Callable
from types import TracebackType

import ray
from ray import serve
from ray._private.services import canonicalize_bootstrap_address
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # its stubs are partial
from ray.exceptions import AuthenticationError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.managed_cluster import POLITE_END_S, run_for, start_ray, undisturbed
from rayinfer_deployments.cluster.ray_environment import lacks_token, settings_of_ray

CONNECT_S = 5.0
ENVIRONMENT_S = 10.0
TOKEN_PLACES = "copy the cluster's ~/.ray/auth_token here, or name it with RAY_AUTH_TOKEN_PATH"


class AttachedCluster:
    """A Ray cluster started outside rayinfer; at the end only our application is removed from it."""

    owns_ray = False

    def __init__(self, address: str, application: str, check: Callable[[], None] = lambda: None) -> None:
        self.address = address  # as given; once joined, where Ray's own table (GCS) is reached
        self._check_while_starting = check  # may raise
        self._application = application
        self._serve_was_running = False

    def __enter__(self) -> "AttachedCluster":
        self.address = attach(self.address, self._check_while_starting)
        self._serve_was_running = bool(serve.status().proxies)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with undisturbed():
            if self._serve_was_running:
                run_for(POLITE_END_S, lambda: serve.delete(self._application))
            else:
                run_for(POLITE_END_S, serve.shutdown)
            run_for(POLITE_END_S, ray.shutdown)

    def environments(self) -> list[dict[str, str]]:
        """Read the settings of Ray's own in the environment of every node, as programs there find them."""
        return node_environments()

    def check(self) -> None:
        """Raise RayinferError when Ray cannot be reached any more."""
        if not ray.is_initialized():
            raise RayinferError(f"the connection to Ray at {self.address} is lost")


def attach(address: str, check: Callable[[], None] = lambda: None) -> str:
    """Connect this process to a Ray cluster; returns its GCS address. `check` is called meanwhile.

    Raises RayinferError where nothing listens, and where Ray refuses: without its token, for one.
    """
    _check_reachable(address)
    _check_token(address)
    try:
        start_ray(address=address).result(check)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RayinferError(f"cannot attach to Ray at {address}: {str(error).splitlines()[0]}") from None
    joined: str = ray.get_runtime_context().gcs_address
    return joined


def node_environments() -> list[dict[str, str]]:
    """Read the settings of Ray's own in the environment of every node, as programs there find them."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    asked = [
        _ray_settings.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in nodes
    ]
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=ENVIRONMENT_S)
    found: list[dict[str, str]] = ray.get(ready)
    return found


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]  # Ray is untyped to mypy here
def _ray_settings() -> dict[str, str]:
    return settings_of_ray()


def _check_token(address: str) -> None:
    """Raise RayinferError where Ray requires a token that this process lacks: Ray itself would retry, or abort."""
    if lacks_token():
        raise RayinferError(
            f"cannot attach to Ray at {address}: RAY_AUTH_MODE is token, but no token was found; {TOKEN_PLACES}"
        )
    if address.startswith("ray://"):
        return
    try:
        GcsClient(address=canonicalize_bootstrap_address(address))
    except (ConnectionError, ValueError) as error:  # the second for what is no address
        raise RayinferError(f"cannot attach to Ray at {address}: {str(error).splitlines()[0]}") from None
    except AuthenticationError:
        raise RayinferError(f"cannot attach to Ray at {address}: it requires another token; {TOKEN_PLACES}") from None


def _check_reachable(address: str) -> None:
    """Raise RayinferError when nothing listens there: Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # auto, which Ray looks up
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise RayinferError(f"cannot attach to Ray at {address}: {error.strerror or error}") from None
