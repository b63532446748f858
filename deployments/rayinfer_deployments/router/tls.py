"""TLS of the router's own port, whose files may change while it serves."""

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from rayinfer.errors import ConfigError

CHECK_S = 1.0

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpTlsFiles:
    """Files in PEM form: the certificate with its chain, its key, and the authorities of clients' certificates."""

    certificate: str
    key: str
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        """Load the files; raises ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # A key with a passphrase would ask for it on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot load the TLS files {', '.join(self._paths())}: {error}") from None
        return context

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Return what changes whenever a file does."""
        try:
            return tuple((status.st_ino, status.st_mtime_ns) for status in map(Path.stat, map(Path, self._paths())))
        except OSError:
            return ()

    def _paths(self) -> list[str]:
        return [self.certificate, self.key, *([] if self.client_ca is None else [self.client_ca])]


class ReloadedTls:
    """TLS context of a listener; new connections get the files' latest content, open ones continue."""

    def __init__(self, files: HttpTlsFiles, *, check_s: float = CHECK_S) -> None:
        self._check_s = check_s
        self._files = files
        self._stamp = files.stamp()
        self._current = files.context()
        self.context = files.context()
        self.context.sni_callback = self._choose  # called in every handshake, with or without a name

    async def follow(self) -> None:
        """Load the files whenever they change, until cancelled; invalid ones leave the old ones in place."""
        while True:
            await asyncio.sleep(self._check_s)
            stamp = self._files.stamp()
            if stamp and stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._current = await asyncio.to_thread(self._files.context)
                except ConfigError as error:
                    logger.error("the old TLS certificate is kept: %s", error)

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _of: ssl.SSLContext) -> None:
        connection.context = self._current
