"""A service that `serve deploy` has started, operated by a process that joins its Ray for one command.

No process of such a service listens for commands: the command attaches to its Ray as a driver and runs them, by the
same operations as a service's own process.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import ray
from ray import serve
from ray.serve.schema import ProxyStatus

from rayinfer_deployments.cluster.attached_cluster import attach, node_environments
from rayinfer_deployments.cluster.control_client import result_in
from rayinfer_deployments.cluster.managed_cluster import POLITE_END_S, run_for
from rayinfer_deployments.cluster.ray_environment import missing_settings
from rayinfer_deployments.cluster.service_record import service_url
from rayinfer_deployments.operations.control_socket import carry_out
from rayinfer_deployments.operations.deployed_config import (
    DeployedConfig,
    Details,
    find_application,
    original_args_of,
    read_details,
)
from rayinfer_deployments.operations.service_operations import ServiceOperations


class DeployedService:
    """One application of the Ray that this process is part of; raises RayinferError where it is not clear which."""

    def __init__(self, application: str | None, *, looks_at_settings: bool = False) -> None:
        details = read_details()
        self.application = find_application(details, application)
        self.ray_address: str = ray.get_runtime_context().gcs_address
        self._details = details["applications"][self.application]
        self.port, self.url = _address_of(details, self._details)
        config = self._details["deployed_app_config"]
        deployed = DeployedConfig(self.application, config)
        self._operations = ServiceOperations(
            self.application,
            deployed.args,
            missing_settings=_missing_settings() if looks_at_settings else (),
            deploy=deployed.deploy,
            original=original_args_of(config).models,
        )
        self._runner = asyncio.Runner()

    def ask(self, operation: str, *, timeout_s: float, **arguments: Any) -> Any:
        """Run a command; raises RayinferError when it is refused, or takes too long."""

        async def carried_out() -> dict[str, Any]:
            try:
                async with asyncio.timeout(timeout_s):
                    return await carry_out(self._operations.by_name(), operation, arguments)
            except TimeoutError:
                return {"error": f"the service has not answered within {timeout_s:.0f} s"}

        return result_in(self._runner.run(carried_out()))

    def describe(self) -> dict[str, Any]:
        """Return the service's address and start time; it has no process of its own."""
        return {
            "url": self.url,
            "port": self.port,
            "pid": None,
            "age_s": round(time.time() - self._details["last_deployed_time_s"], 1),
            "ray_address": self.ray_address,
            "owns_ray": False,
        }

    def close(self) -> None:
        """End the event loop that ran the commands."""
        self._runner.close()


class AttachedService:
    """A deployed service whose Ray this process joins for the time of a block."""

    def __init__(
        self,
        address: str,
        application: str | None,
        *,
        looks_at_settings: bool = False,
    ) -> None:
        self._address = address
        self._application = application
        self._looks_at_settings = looks_at_settings
        self._service: DeployedService | None = None

    def __enter__(self) -> DeployedService:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        try:
            attach(self._address)
            self._service = DeployedService(self._application, looks_at_settings=self._looks_at_settings)
        except BaseException:
            self._leave()
            raise
        return self._service

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._service is not None:
            self._service.close()
        run_for(POLITE_END_S, ray.shutdown)


def readiness_in(report: Mapping[str, Any]) -> dict[str, str]:
    """List why a service is not ready, as its routers and Serve's proxies report; nothing where it is.

    Serve's port may be another machine's, and its proxies' address one that only that machine reaches.
    """
    reasons = {
        model["name"]: model["reason"]
        for router in report["routers"]
        for model in router["models"]
        if not model["ready"]
    }
    if not report["routers"]:
        reasons["router"] = "no router answers"
    proxies = list(serve.status().proxies.values())
    if proxies and ProxyStatus.HEALTHY not in proxies:
        reasons["http"] = f"no HTTP proxy is healthy ({', '.join(sorted({proxy.value for proxy in proxies}))})"
    return reasons


def _address_of(details: Details, application: Mapping[str, Any]) -> tuple[int, str]:
    """Find where an application answers: at Serve's proxies, under its prefix, or at a port of its router's own."""
    args = application["deployed_app_config"].get("args") or {}
    if (port := args.get("listen_port")) is not None:
        return port, service_url(args.get("listen_host", "127.0.0.1"), port)
    http = details.get("http_options") or {}
    port = http.get("port", 8000)
    return port, service_url(http.get("host") or "127.0.0.1", port) + (application["route_prefix"] or "").rstrip("/")


def _missing_settings() -> list[str]:
    found = [missing_settings(node, throughput=False) for node in node_environments()]
    return list(dict.fromkeys(line for lines in found for line in lines))
