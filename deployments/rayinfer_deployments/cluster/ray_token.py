"""Permissions of Ray's token file: a reader of it can run programs on this user's Rays, so only the user may."""

import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FOLDER_MODE = 0o700
TOKEN_MODE = 0o600
TOKEN_BYTES = 32  # as many as Ray draws

_logger = logging.getLogger(__name__)


def default_token_path(home: Path | None = None) -> Path:
    """Return where Ray keeps the token unless the environment names another file."""
    return (home or Path.home()) / ".ray" / "auth_token"


def ensure_private_token(environment: Mapping[str, str], home: Path | None = None) -> None:
    """Make Ray's default token file and its folder private, and draw the token where there is none.

    Call it before Ray starts, which would write the file readable by all users. A token that the environment names
    is its owner's matter. A file of another user is left as it is, with a warning.
    """
    if not _uses_default_token(environment):
        return
    path = default_token_path(home)
    try:
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        _restrict(path.parent, FOLDER_MODE)
        if not path.exists():
            _write_token(path)
        _restrict(path, TOKEN_MODE)
    except OSError as error:
        _logger.warning("Ray's token in %s cannot be kept from other users: %s", path, error)


def exposed_token_paths(environment: Mapping[str, str], home: Path | None = None) -> dict[Path, int]:
    """Return what other users may open of Ray's token file and its folder, with the mode that each should have.

    The folder of a token that the environment names holds other files too, and is not looked at.
    """
    if "RAY_AUTH_TOKEN" in environment:
        return {}
    if named := environment.get("RAY_AUTH_TOKEN_PATH"):
        modes = {Path(named): TOKEN_MODE}
    else:
        path = default_token_path(home)
        modes = {path.parent: FOLDER_MODE, path: TOKEN_MODE} if path.exists() else {}
    return {path: mode for path, mode in modes.items() if _is_exposed(path)}


def _uses_default_token(environment: Mapping[str, str]) -> bool:
    is_named = any(environment.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return environment.get("RAY_AUTH_MODE", "").lower() == "token" and not is_named


def _restrict(path: Path, mode: int) -> None:
    if _is_exposed(path):
        path.chmod(mode)


def _is_exposed(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return bool(stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO))
    return False


def _write_token(path: Path) -> None:
    """Write a new token, whole from the first moment: another service may start at the same time."""
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".auth_token.")  # with mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(TOKEN_BYTES))
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        Path(unfinished).unlink()
