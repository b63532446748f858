"""`rayinfer cache`: the packed weights in the cache folder, and their deletion."""

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer

from rayinfer.config import cache_folder, packed_cache_bytes
from rayinfer_deployments.cli.failures import in_one_line

GIB = 2**30


def build_application() -> typer.Typer:
    """Put the commands together."""
    application = typer.Typer(help="Packed weights in the cache folder.", no_args_is_help=True)
    application.command("ls")(list_cache)
    application.command("clean")(clean)
    return application


@in_one_line
def list_cache(as_json: Annotated[bool, typer.Option("--json", help="for scripts: a list of objects")] = False) -> None:
    """List the packed weights, the least recently used first; they are deleted in this order."""
    from rayinfer.optimization.packed_entries import list_entries

    folder = cache_folder() / "packed"
    entries = list_entries(folder)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used_s))
        typer.echo(f"{entry.key}  {entry.num_bytes / GIB:8.2f} GiB  last used {used}")
    num_bytes = sum(entry.num_bytes for entry in entries)
    limit = f"{packed_cache_bytes() / GIB:g} GiB (RAYINFER_PACKED_CACHE_GIB)"
    typer.echo(f"{len(entries)} entries, {num_bytes / GIB:.2f} of at most {limit} in {folder}")


@in_one_line
def clean(
    keep_gib: Annotated[float, typer.Option(min=0.0, help="keep the most recently used ones, up to this size")] = 0.0,
) -> None:
    """Delete packed weights: all of them, or the least recently used; engines that run keep theirs in memory."""
    from rayinfer.optimization.packed_entries import delete_unfinished, shrink

    folder = cache_folder() / "packed"
    deleted = shrink(folder, int(keep_gib * GIB))
    delete_unfinished(folder)
    num_bytes = sum(entry.num_bytes for entry in deleted)
    typer.echo(f"deleted {len(deleted)} entries, {num_bytes / GIB:.2f} GiB, from {folder}")
