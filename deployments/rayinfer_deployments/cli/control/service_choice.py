"""Selection of a command's service: one on record on this machine, or one that is deployed on a Ray cluster."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from rayinfer.errors import ConfigError

if TYPE_CHECKING:
    from rayinfer_deployments.cluster.service_record import ServiceRecord
    from rayinfer_deployments.operations.attached_service import DeployedService

AUTO = "auto"

Port = Annotated[int | None, typer.Option(help="port of the service (default: the only service of this machine)")]
Address = Annotated[
    str | None, typer.Option(help="address of the Ray cluster of a service of `serve deploy` (auto, or HOST:PORT)")
]
Application = Annotated[
    str | None, typer.Option(help="name of the application in the `serve deploy` file (default: the only one)")
]


class OperatedService(Protocol):
    """Service that runs operators' commands."""

    def ask(self, operation: str, *, timeout_s: float, **arguments: Any) -> Any:
        """Run a command on the service; raises RayinferError when the service refuses, or does not answer in time."""


@dataclass(frozen=True, slots=True)
class RecordedService:
    """A service of `rayinfer serve`, whose own process runs commands."""

    record: "ServiceRecord"

    def ask(self, operation: str, *, timeout_s: float, **arguments: Any) -> Any:
        """Send the command to the process's socket."""
        from rayinfer_deployments.cluster.control_client import ask

        return ask(self.record.control_socket, operation, timeout_s=timeout_s, **arguments)


@contextlib.contextmanager
def chosen_service(port: int | None, address: str | None, application: str | None) -> Iterator[OperatedService]:
    """Find the service that a command is for, joining its Ray where no process of it listens on this machine.

    Raises ConfigError for options that exclude each other, RayinferError where no service is found or several are.
    """
    from rayinfer_deployments.cluster.service_record import find_service

    if (ray_address := ray_to_join(port, address, application)) is None:
        yield RecordedService(find_service(port))
    else:
        with joined(ray_address, application) as service:
            yield service


def ray_to_join(port: int | None, address: str | None, application: str | None) -> str | None:
    """Return the address of the service's Ray; None where it is on record, or where nothing names a Ray."""
    from rayinfer_deployments.cluster.ray_environment import started_ray_address
    from rayinfer_deployments.cluster.service_record import find_services

    if port is not None and (address is not None or application is not None):
        raise ConfigError("--port selects a service of this machine; it excludes --address and --application")
    if address is not None:
        return address
    if application is not None:
        return started_ray_address() or AUTO
    return None if port is not None or find_services() else started_ray_address()


@contextlib.contextmanager
def joined(address: str, application: str | None, *, looks_at_settings: bool = False) -> Iterator["DeployedService"]:
    """Join a Ray while the block lasts, and yield the service that is deployed there."""
    from rayinfer_deployments.cluster.ray_environment import set_ray_settings

    set_ray_settings(owns_ray=False)  # before anything imports Ray, which reads the environment
    from rayinfer_deployments.operations.attached_service import AttachedService

    with AttachedService(address, application, looks_at_settings=looks_at_settings) as service:
        yield service
