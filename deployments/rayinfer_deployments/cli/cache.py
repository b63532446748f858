"""`rayinfer cache`: packed weights, models from other nodes and KV block stores of this machine, and their deletion."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayinfer.config import (
    cache_folder,
    kv_store_folder,
    model_copies_bytes,
    packed_cache_bytes,
    shared_memory_folder,
)
from rayinfer_deployments.cli.failures import in_one_line

if TYPE_CHECKING:
    from rayinfer.kv_store.store_files import StoreFile
    from rayinfer.optimization.packed_entries import PackedEntry
    from rayinfer_deployments.model_files.received_entries import ReceivedEntry

GIB = 2**30


def build_application() -> typer.Typer:
    """Put the commands together."""
    application = typer.Typer(
        help="Packed weights and models from other nodes in the cache folder, and KV block stores.",
        no_args_is_help=True,
    )
    application.command("ls")(list_cache)
    application.command("clean")(clean)
    return application


@in_one_line
def list_cache(as_json: Annotated[bool, typer.Option("--json", help="for scripts: a list of objects")] = False) -> None:
    """List packed weights, models from other nodes and KV block stores, the least recently used first."""
    from rayinfer.kv_store.store_files import list_stores
    from rayinfer.optimization.packed_entries import list_entries
    from rayinfer_deployments.model_files.received_entries import list_received, received_root

    packed, copies = list_entries(cache_folder() / "packed"), list_received(received_root())
    if as_json:
        found = [{"kind": "packed"} | asdict(entry) for entry in packed]
        found += [{"kind": "copy"} | asdict(entry) for entry in copies]
        for kind, folder in _store_folders().items():
            found += [{"kind": kind} | asdict(store) for store in list_stores(folder)]
        typer.echo(json.dumps(found, indent=2))
        return
    for entry in packed:
        typer.echo(f"{entry.key}  {_size_and_use(entry)}")
    _echo_sum(packed, "entries", packed_cache_bytes(), "RAYINFER_PACKED_CACHE_GIB", cache_folder() / "packed")
    for copy in copies:
        where = str(Path(copy.folder).relative_to(received_root()))
        typer.echo(f"{where}  {_size_and_use(copy)}  {copy.model}{', in use' if copy.is_in_use else ''}")
    _echo_sum(copies, "models of other nodes", model_copies_bytes(), "RAYINFER_MODEL_COPIES_GIB", received_root())
    for folder in _store_folders().values():
        stores = list_stores(folder)
        for store in stores:
            in_use = ", in use" if store.is_in_use else ""
            typer.echo(f"{Path(store.path).name}  {_size_and_use(store)}  {store.model}{in_use}")
        typer.echo(f"{len(stores)} KV block stores, {_gib(stores)}, in {folder}")


@in_one_line
def clean(
    keep_gib: Annotated[
        float, typer.Option(min=0.0, help="keep the most recently used ones of each kind, up to this size")
    ] = 0.0,
) -> None:
    """Delete packed weights, models from other nodes and KV block stores, all or the least recently used.

    Those in use keep working: stores of running engines stay.
    """
    from rayinfer.kv_store.store_files import shrink_unused
    from rayinfer.optimization.packed_entries import delete_unfinished, shrink
    from rayinfer_deployments.model_files import received_entries

    folder, most = cache_folder() / "packed", int(keep_gib * GIB)
    deleted = shrink(folder, most)
    delete_unfinished(folder)
    typer.echo(f"deleted {len(deleted)} entries, {_gib(deleted)}, from {folder}")
    root = received_entries.received_root()
    copies = received_entries.shrink_received(root, most)
    received_entries.delete_unfinished(root)
    in_use = sum(entry.is_in_use for entry in received_entries.list_received(root))
    kept = f"; {in_use} in use are kept" if in_use else ""
    typer.echo(f"deleted {len(copies)} models of other nodes, {_gib(copies)}, from {root}{kept}")
    for store_folder in _store_folders().values():
        stores = shrink_unused(store_folder, most)
        typer.echo(f"deleted {len(stores)} KV block stores, {_gib(stores)}, from {store_folder}")


def _store_folders() -> dict[str, Path]:
    """Return the folders of KV block stores by kind; `kv_store_folder` of engines may name others."""
    return {"kv-memory": shared_memory_folder(), "kv-disk": kv_store_folder()}


def _size_and_use(entry: "PackedEntry | ReceivedEntry | StoreFile") -> str:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used_s))
    return f"{entry.num_bytes / GIB:8.2f} GiB  last used {used}"


def _gib(entries: "list[PackedEntry] | list[ReceivedEntry] | list[StoreFile]") -> str:
    return f"{sum(entry.num_bytes for entry in entries) / GIB:.2f} GiB"


def _echo_sum(
    entries: "list[PackedEntry] | list[ReceivedEntry]", what: str, most: int, setting: str, folder: Path
) -> None:
    held = sum(entry.num_bytes for entry in entries) / GIB
    typer.echo(f"{len(entries)} {what}, {held:.2f} of at most {most / GIB:g} GiB ({setting}) in {folder}")
