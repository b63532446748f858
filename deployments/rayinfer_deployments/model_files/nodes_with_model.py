"""Search for a model on the cluster's nodes: a node that lacks it gets it from one that has it."""

import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayinfer.config import model_copies_bytes
from rayinfer.errors import ModelLoadError, ModelNotFound
from rayinfer.models.checkpoints.sources import find_local_model, resolve_model
from rayinfer_deployments.model_files.folder_manifest import (
    FolderManifest,
    Piece,
    PieceRange,
    manifest_of,
    read_piece,
)
from rayinfer_deployments.model_files.folder_transfer import ReceivedFolders
from rayinfer_deployments.model_files.received_entries import received_root, use_until_exit

ANSWER_S = 60.0  # of the other nodes, to what they have; a process starts there
ANSWER_WITH_COPY_S = 10.0  # where an earlier copy could do
SAME_MOMENT_S = 0.2
PIECE_S = 120.0
THREADS = 4  # that read pieces for one other node

logger = logging.getLogger("ray.serve")


def resolve_on_cluster(model: str, *, with_weights: bool = True) -> Path:
    """Return a folder with the model's files, on this node: its own, another node's, or one that is downloaded.

    Without weights, what routers read of it. Where this node has the model, or is the only one, nothing is asked.
    """
    if (folder := find_local_model(model)) is not None:
        return folder
    others = _other_nodes()
    if not others:
        return resolve_model(model, progress=False)
    received = received_folders()
    copy = received.newest(model, with_weights=with_weights)
    manifests = _ask(others, model, with_weights, ANSWER_S if copy is None else ANSWER_WITH_COPY_S)
    for node in random.sample(sorted(manifests), len(manifests)):  # those that got it earlier serve it, too
        try:
            return _receive(received, node, model, manifests[node], with_weights)
        except ModelLoadError as error:
            logger.warning("model %s cannot be had from node %s: %s", model, node[:12], error)
    if copy is not None:
        use_until_exit(copy)
        return copy
    try:
        return resolve_model(model, progress=False)
    except ModelNotFound as error:
        raise ModelNotFound(f"{error}; none of the cluster's {len(others)} other nodes has it") from None


def received_folders() -> ReceivedFolders:
    """Return this node's cache of models from other nodes."""
    return ReceivedFolders(received_root(), max_bytes=model_copies_bytes())


def _other_nodes() -> list[str]:
    if not ray.is_initialized():
        return []
    own = ray.get_runtime_context().get_node_id()
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != own]


def _ask(nodes: Sequence[str], model: str, with_weights: bool, timeout_s: float) -> dict[str, FolderManifest]:
    """Ask other nodes for the manifest of their folder, until the first has it; answers of the same moment count, too.

    Those without it, or without an answer, are left out.
    """
    late = {describe_model.options(scheduling_strategy=_on(node)).remote(model, with_weights): node for node in nodes}
    found: dict[str, FolderManifest] = {}
    deadline = time.monotonic() + timeout_s
    while late and not found and (left_s := deadline - time.monotonic()) > 0:
        ray.wait(list(late), num_returns=1, timeout=left_s)
        ready, _ = ray.wait(list(late), num_returns=len(late), timeout=SAME_MOMENT_S)
        for reference in ready:
            node = late.pop(reference)
            with contextlib.suppress(RayError):
                if (manifest := ray.get(reference)) is not None:
                    found[node] = manifest
    for reference in late:
        ray.cancel(reference, force=True)
    return found


def _receive(received: ReceivedFolders, node: str, model: str, manifest: FolderManifest, with_weights: bool) -> Path:
    reader = (
        ray.remote(ModelReader)
        .options(num_cpus=0, max_concurrency=THREADS, scheduling_strategy=_on(node))
        .remote(model)
    )
    try:
        folder = received.receive(model, manifest, _OtherNode(reader), with_weights=with_weights)
    finally:
        ray.kill(reader)
    logger.info("model %s: %.1f MB from node %s", model, manifest.size / 1e6, node[:12])
    return folder


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


def folder_here(model: str, *, with_weights: bool) -> Path | None:
    """Return this node's folder of a model, its own or a received one; None where it has none."""
    if (folder := find_local_model(model)) is not None:
        return folder
    received = received_folders()
    folder = received.newest(model, with_weights=True)
    return folder if folder is not None or with_weights else received.newest(model, with_weights=False)


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]  # Ray is untyped to mypy here
def describe_model(model: str, with_weights: bool) -> FolderManifest | None:
    """Return the manifest of this node's folder of a model."""
    folder = folder_here(model, with_weights=with_weights)
    return None if folder is None else manifest_of(folder, with_weights=with_weights)


class ModelReader:
    """Ray actor on a node that has a model, which reads pieces of it for another node."""

    def __init__(self, model: str) -> None:
        folder = folder_here(model, with_weights=False)  # which prefers one with weights
        if folder is None:
            raise ModelNotFound(f"model {model!r} is not on this node any more")
        if folder.is_relative_to(received_root()):
            use_until_exit(folder)
        self._folder = folder

    def read(self, place: PieceRange) -> Piece:
        """Read a piece, with its digest."""
        return read_piece(self._folder, place)


class _OtherNode:
    def __init__(self, reader: ActorHandle) -> None:
        self._reader = reader

    def ask(self, place: PieceRange) -> Callable[[], Piece]:
        """See PieceSource."""
        reference = self._reader.read.remote(place)

        def arrived() -> Piece:
            try:
                piece: Piece = ray.get(reference, timeout=PIECE_S)
            except RayTaskError as error:
                raise ModelLoadError(str(error.cause)) from None
            except (RayError, TimeoutError) as error:
                raise ModelLoadError(f"the node is lost: {type(error).__name__}") from None
            return piece

        return arrived
