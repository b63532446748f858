"""Files and batches in a router: its owner as the router calls it, and the runner of rows."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from rayinfer.access.access_control import AccessControl
from rayinfer.access.caller import Caller
from rayinfer.errors import RayinferError
from rayinfer.metrics.batch_counts import BatchCounts
from rayinfer.servers.openai.batches.routes import BatchServices
from rayinfer.servers.openai.batches.runner import BatchRunner
from rayinfer.servers.openai.responses.store import ResponseStore
from rayinfer.servers.served_model import ServedModel, base_models
from rayinfer_deployments.router.batch_owner_actor import BatchSettings, RemoteBatches

logger = logging.getLogger(__name__)


class RouterBatches:
    """The owner and the runner of one router."""

    def __init__(
        self,
        router: str,
        application: str,
        settings: BatchSettings,
        models: Mapping[str, ServedModel],
        access: AccessControl | None,
        counts: BatchCounts,
    ) -> None:
        self.shared = RemoteBatches(application, settings)
        self.runner = BatchRunner(
            router,
            self.shared,
            find_caller=_finder(access),
            num_slots=lambda: num_slots(models),
            is_used=settings.is_used,
            counts=counts,
        )
        self.services = BatchServices(
            shared=self.shared, on_batch=self.runner.wake, max_file_bytes=settings.limits.max_file_bytes
        )


def open_response_store(folder: str | None) -> ResponseStore:
    """Open the responses in the folder of batches, which routers of a machine share; in memory where that fails."""
    try:
        return ResponseStore(None if folder is None else Path(folder))
    except RayinferError as error:
        logger.warning("%s; responses are kept in the memory of this router", error)
        return ResponseStore()


def num_slots(models: Mapping[str, ServedModel]) -> int:
    """Return how many requests the engines that are there run at once."""
    engines = (model.generator.status().descriptions.values() for model in base_models(models).values())
    return sum(max(1, description.max_num_seqs) for each in engines for description in each)


def _finder(access: AccessControl | None) -> Callable[[str, str], Caller | None]:
    def find_caller(key_id: str, tenant: str) -> Caller | None:
        """Return the caller whose batch it is; None where the key is revoked."""
        if not key_id:
            return Caller(tenant=tenant) if access is None else None
        keys = None if access is None else access.authenticator.keys
        key = None if keys is None else keys.by_id.get(key_id)
        return None if key is None or key.revoked_s is not None else Caller(tenant=tenant, key=key)

    return find_caller
