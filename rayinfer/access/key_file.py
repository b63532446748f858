"""File of API keys: a line of JSON for each, replaced as a whole, readable by its owner only."""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rayinfer.access.api_key import ApiKey, KeyLimits, Scope, digest_of, new_key, new_secret, parse_key
from rayinfer.errors import ConfigError


class KeyFile:
    """Keys in a file; several processes may change and read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parsed: dict[str, ApiKey] = {}  # by line, so that reading again costs little

    def read(self) -> list[ApiKey]:
        """Read all keys, revoked ones too; none if there is no file. Raises ConfigError that names the line."""
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            lines = []
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the keys in {self.path}: {error}") from None
        parsed: dict[str, ApiKey] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                parsed[line] = self._parsed.get(line) or parse_key(line)
            except ConfigError as error:
                raise ConfigError(f"{self.path}, line {number}: {error}") from None
        self._parsed = parsed
        keys = list(parsed.values())
        for what, values in (("key_id", [key.key_id for key in keys]), ("sha256", [key.sha256 for key in keys])):
            if len(set(values)) < len(values):
                raise ConfigError(f"{self.path} has two keys of the same {what}")
        return keys

    def stamp(self) -> tuple[int, ...]:
        """Return what changes whenever the file does; empty if there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return ()
        return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)

    def warning(self) -> str:
        """Return what is dangerous about the file; empty if nothing is."""
        try:
            mode = self.path.stat().st_mode & 0o777
        except OSError:
            return ""
        if not mode & 0o077:
            return ""
        return f"the key file {self.path} is open to other users (mode {mode:o}): run chmod 600 {self.path}"

    def create(
        self,
        name: str,
        *,
        tenant: str | None = None,
        weight: float = 1.0,
        scopes: Sequence[Scope] = (Scope.INFER,),
        limits: KeyLimits | None = None,
    ) -> str:
        """Add a key and return its secret, which is kept nowhere; raises ConfigError for a name in use."""
        secret = new_secret()
        key = new_key(
            key_id=secrets.token_hex(6),
            name=name,
            sha256=digest_of(secret).hex(),
            tenant=tenant or name,
            weight=weight,
            scopes=frozenset(scopes),
            limits=limits or KeyLimits(),
            created_s=round(time.time(), 3),
        )
        with self._locked():
            keys = self.read()
            if any(other.name == name and other.revoked_s is None for other in keys):
                raise ConfigError(f"a key named {name!r} exists in {self.path}: revoke it first, or take another name")
            self._write([*keys, key])
        return secret

    def revoke(self, wanted: str) -> ApiKey:
        """Revoke a key by its name or id; raises ConfigError if there is none."""
        with self._locked():
            keys = self.read()
            found = [key for key in keys if wanted in (key.name, key.key_id) and key.revoked_s is None]
            if not found:
                raise ConfigError(f"no key {wanted!r} that is not revoked in {self.path}")
            revoked = found[0].model_copy(update={"revoked_s": round(time.time(), 3)})
            self._write([revoked if key is found[0] else key for key in keys])
        return revoked

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path.with_name(self.path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, keys: Sequence[ApiKey]) -> None:
        unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        descriptor = os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.writelines(key.line() + "\n" for key in keys)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self.path)
        finally:
            unfinished.unlink(missing_ok=True)


class WatchedKeyFile:
    """Key file that is read again when it has changed; what is wrong with it is in `error` until it is mended."""

    def __init__(self, path: Path) -> None:
        self.error = ""
        self._file = KeyFile(path)
        self._stamp: tuple[int, ...] | None = None  # not read yet

    def read_changed(self) -> list[ApiKey] | None:
        """Return the keys where the file has changed and is valid, else None; no file at first is one without keys."""
        stamp = self._file.stamp()  # before the file is read: a later change is seen next time
        if stamp == self._stamp:
            return None
        is_gone = not stamp and self._stamp is not None
        self._stamp = stamp
        if is_gone:
            self.error = f"the key file {self._file.path} is gone"
            return None
        try:
            keys = self._file.read()
        except ConfigError as error:
            self.error = str(error)
            return None
        self.error = ""
        return keys
