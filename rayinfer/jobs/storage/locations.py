"""Locations of inputs and outputs: local paths, and URLs of object stores through fsspec."""

from collections.abc import Callable
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

import fsspec

from rayinfer.jobs.interfaces import JobError

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}


class RemoteLocation(NamedTuple):
    """Path on a file system of fsspec."""

    filesystem: Any
    path: str
    url: str


def is_url(location: str | Path) -> bool:
    """Say whether a location is a URL of an object store rather than a local path."""
    return "://" in str(location) and not str(location).startswith("file://")


def local_path(location: str | Path) -> Path:
    """Return a local location's path, which may be given as file://."""
    return Path(str(location).removeprefix("file://"))


def is_among(location: str | Path, others: str | Path) -> bool:
    """Say whether a location is another one, lies in that folder, or matches that pattern."""
    own, other = _absolute(location), _absolute(others)
    return own == other or other in own.parents or own.match(str(other))


def _absolute(location: str | Path) -> PurePath:
    return PurePosixPath(str(location)) if is_url(location) else local_path(location).resolve()


def remote_location(url: str, error: Callable[[str], JobError]) -> RemoteLocation:
    """Find the file system of a URL; `error` makes the caller's kind of error."""
    scheme = url.partition("://")[0]
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as missing:
        package = _PACKAGES.get(scheme, f"an fsspec implementation of {scheme}")
        raise error(f"{url}: needs the package {package} ({missing}); for s3:// install rayinfer[s3]") from None
    except ValueError as unknown:
        raise error(f"{url}: {unknown}") from None
    return RemoteLocation(filesystem, path, url)
