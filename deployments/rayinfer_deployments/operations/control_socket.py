"""Control socket of a running service: a Unix socket beside its record, which only its user can open.

One line of JSON goes in and one comes out. The service's own process answers, which is part of the Ray cluster already:
a command need not join that, which takes seconds, and no HTTP path has to be opened to clients. Where no such process
is, `operations/attached_service.py` carries out the same commands.
"""

import asyncio
import contextlib
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.control_client import short_path

Operation = Callable[..., Awaitable[Any]]

MAX_LINE_BYTES = 2**20
ERROR_LIMIT = 500  # characters of an unexpected error that are sent

logger = logging.getLogger(__name__)


class ControlSocket:
    """Server of operators' commands in an event loop and a thread of its own, while its block lasts."""

    def __init__(self, path: Path, operations: Mapping[str, Operation]) -> None:
        self._path = path
        self._operations = operations
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "ControlSocket":
        self._listener = _listen(self._path)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_ending.set)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with await asyncio.start_unix_server(self._serve_client, sock=self._listener, limit=MAX_LINE_BYTES):
            await self._is_ending.wait()

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            command = json.loads(await reader.readline())
            response = await carry_out(self._operations, command.get("operation", ""), command.get("arguments", {}))
            writer.write(json.dumps(response).encode() + b"\n")
            await writer.drain()
        writer.close()


async def carry_out(operations: Mapping[str, Operation], name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command; returns what `control_client.result_in` parses, and raises nothing."""
    operation = operations.get(name)
    if operation is None:
        return {"error": f"this service knows no command {name!r}"}
    try:
        return {"result": await operation(**arguments)}
    except RayinferError as error:
        return {"error": str(error)}
    except Exception as error:
        logger.exception("command %s %s failed", name, dict(arguments))
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[-ERROR_LIMIT:]}"}


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with short_path(path) as address:
        listener.bind(address)
    path.chmod(0o600)  # no client can connect before this process listens
    listener.listen()
    return listener
