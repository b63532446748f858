"""A head node without the Ray processes that a service on one machine has no use for.

`ray.init` has no setting for them, only `ray start` has for some (`--no-monitor`, `--include-log-monitor`). So its
class of nodes gives way to one that leaves them out while Ray is started. Under a Ray whose class has other methods
they are started as ever.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import ray._private.node
import ray._private.utils
from ray._private import services
from ray._private.node import Node
from ray._raylet import (  # type: ignore[attr-defined]  # its stub lacks them
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
    get_port_filename,
    persist_port,
)

from rayinfer_deployments.cluster import idle_agent

# Isolated and without site packages: all that it imports is part of every Python's start.
IDLE_AGENT = [sys.executable, "-I", "-S", idle_agent.__file__]
DASHBOARD_AGENT_PORTS = (METRICS_AGENT_PORT_NAME, METRICS_EXPORT_PORT_NAME, DASHBOARD_AGENT_LISTEN_PORT_NAME)
NOT_IN_USE = -1  # as the agent of a Ray without its dashboard's dependencies writes it
DASHBOARD_AGENT, RUNTIME_ENV_AGENT = "--dashboard_agent_command=", "--runtime_env_agent_command="  # raylet's options


class ServiceNode(Node):  # type: ignore[misc]  # Ray is untyped to mypy here
    """A head node without autoscaler, dashboard, metrics agent and log monitor; runtime environments on demand."""

    def start_monitor(self) -> None:
        """Start no autoscaler: there is one node."""

    def start_log_monitor(self) -> None:
        """Start nothing that reads logs: none is shown."""

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """Start the dashboard's server only for a dashboard; `ray.init` would wait for it without one, too."""
        if include_dashboard is not False:
            super().start_api_server(include_dashboard=include_dashboard, raise_on_failure=raise_on_failure)

    def start_raylet(self, *arguments: Any, **options: Any) -> None:
        """Start raylet with idle processes for its agents."""
        usual = services.start_ray_process

        def start_process(command: list[str], *more: Any, **settings: Any) -> Any:
            return usual([self._with_idle_agent(argument) for argument in command], *more, **settings)

        # Ray imports what its agent would need only to see whether it is there, while raylet waits to be started.
        unneeded_check = _replaced(ray._private.utils, "get_dashboard_dependency_error", lambda: None)
        with unneeded_check, _replaced(services, "start_ray_process", start_process):
            super().start_raylet(*arguments, **options)

    def _with_idle_agent(self, argument: str) -> str:
        """Return an argument of raylet's, with another command where it names an agent's."""
        if argument.startswith(DASHBOARD_AGENT):
            for name in DASHBOARD_AGENT_PORTS:
                persist_port(self._session_dir, self._node_id, name, NOT_IN_USE)
            return DASHBOARD_AGENT + subprocess.list2cmdline(IDLE_AGENT)
        if argument.startswith(RUNTIME_ENV_AGENT):
            port_file = Path(self._session_dir, get_port_filename(self._node_id, RUNTIME_ENV_AGENT_PORT_NAME))
            waiting = [*IDLE_AGENT, self._node_ip_address, str(port_file), "--runtime-env-agent-port"]
            return f"{RUNTIME_ENV_AGENT}{subprocess.list2cmdline(waiting)} {argument.removeprefix(RUNTIME_ENV_AGENT)}"
        return argument


def only_needed_processes() -> AbstractContextManager[None]:
    """Make `ray.init` start a ServiceNode."""
    return _replaced(ray._private.node, "Node", ServiceNode)


@contextlib.contextmanager
def _replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Give a module another value under a name for a while."""
    usual = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, usual)
