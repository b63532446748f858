"""A head node without the Ray processes that a service on one machine has no use for.

`ray.init` has no setting for them, only `ray start` has (`--no-monitor`, `--include-log-monitor`). So its class of
nodes gives way to one that leaves them out while Ray is started. Under a Ray whose class has other methods they are
started as ever.
"""

import contextlib
from collections.abc import Iterator

import ray._private.node
from ray._private.node import Node


class ServiceNode(Node):  # type: ignore[misc]  # Ray is untyped to mypy here
    """A head node without autoscaler, dashboard server and log monitor."""

    def start_monitor(self) -> None:
        """Start no autoscaler: there is one node."""

    def start_log_monitor(self) -> None:
        """Start nothing that reads logs: none is shown."""

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """Start the dashboard's server only for a dashboard; `ray.init` would wait for it without one, too."""
        if include_dashboard is not False:
            super().start_api_server(include_dashboard=include_dashboard, raise_on_failure=raise_on_failure)


@contextlib.contextmanager
def only_needed_processes() -> Iterator[None]:
    """Make `ray.init` start a ServiceNode."""
    usual = ray._private.node.Node
    ray._private.node.Node = ServiceNode
    try:
        yield
    finally:
        ray._private.node.Node = usual
