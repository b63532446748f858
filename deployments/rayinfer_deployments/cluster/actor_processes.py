"""Processes of Ray actors, including actors that are still starting and answer no calls yet."""

from dataclasses import dataclass

from ray._private.state import actors  # the public function needs the dashboard
from ray.actor import ActorHandle
from ray.exceptions import RayError


@dataclass(frozen=True, slots=True)
class ActorProcess:
    """The process in which an actor lives, or is about to."""

    process_id: int
    is_ready: bool  # its constructor has returned


def process_of(actor: ActorHandle) -> ActorProcess | None:
    """Ask Ray for an actor's process; None when it has none yet, or Ray cannot find it. It may take long."""
    try:
        entry = actors(actor._actor_id.hex())
    except RayError:
        return None
    process_id = entry.get("Pid")
    return ActorProcess(process_id, entry.get("State") == "ALIVE") if process_id else None
