"""A Ray that was there before a service, and stays."""

import socket
from collections.abc import Callable
from types import TracebackType

import ray
from ray import serve
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayinfer.errors import RayinferError
from rayinfer_deployments.own_ray import POLITE_END_S, run_for, start_ray, undisturbed
from rayinfer_deployments.ray_environment import settings_of_ray

CONNECT_S = 5.0
ENVIRONMENT_S = 10.0


class JoinedRay:
    """A Ray that somebody else started; only what we put into it is taken out again."""

    owns_ray = False

    def __init__(self, address: str, application: str, check: Callable[[], None] = lambda: None) -> None:
        self.address = address  # as given; once joined, where Ray's own table (GCS) is reached
        self._check_while_starting = check  # may raise
        self._application = application
        self._serve_was_running = False

    def __enter__(self) -> "JoinedRay":
        _check_reachable(self.address)
        try:
            start_ray(address=self.address).result(self._check_while_starting)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RayinferError(f"cannot join Ray at {self.address}: {str(error).splitlines()[0]}") from None
        self.address = ray.get_runtime_context().gcs_address
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
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        asked = [
            _ray_settings.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
            for node in nodes
        ]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ENVIRONMENT_S)
        found: list[dict[str, str]] = ray.get(answered)
        return found

    def check(self) -> None:
        """Raise RayinferError when Ray cannot be reached any more."""
        if not ray.is_initialized():
            raise RayinferError(f"the connection to Ray at {self.address} is lost")


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]  # Ray is untyped to mypy here
def _ray_settings() -> dict[str, str]:
    return settings_of_ray()


def _check_reachable(address: str) -> None:
    """Raise RayinferError when nobody listens there: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # auto, which Ray looks up
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise RayinferError(f"cannot join Ray at {address}: {error.strerror or error}") from None
