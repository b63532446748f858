"""One GET over HTTP/1.1 to a given network address, whose answer is bounded in bytes."""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import h11

CHUNK_BYTES = 2**16
CLOSE_S = 1.0  # for TLS to say goodbye


class FailedGet(Exception):
    """A GET without a whole answer; the message is for the client that named the URL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Path, host and port of a GET."""

    host: str  # as the URL names it: for the Host header and the certificate
    port: int
    path: str  # with its query, in ASCII
    is_tls: bool

    @property
    def host_header(self) -> str:
        """The host as the server knows it."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.is_tls else 80) else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers by their names in lower case, and body; of a redirect or an error the body is not read."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def http_get(
    target: Target, addresses: Sequence[str], headers: Mapping[str, str], *, max_bytes: int, context: ssl.SSLContext
) -> Answer:
    """GET a path from the first address that takes a connection; no name is resolved. Raises FailedGet."""
    reader, writer = await _connect(target, addresses, context)
    try:
        connection = h11.Connection(h11.CLIENT)
        asked = {"Host": target.host_header, "Connection": "close", "Accept-Encoding": "identity", **headers}
        request = h11.Request(method="GET", target=target.path, headers=list(asked.items()))
        writer.write((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
        await writer.drain()
        return await _read_answer(connection, reader, max_bytes)
    except h11.ProtocolError:
        raise FailedGet("its answer is no HTTP/1.1") from None
    except OSError:
        raise FailedGet("the connection was lost") from None
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), CLOSE_S)


async def _connect(
    target: Target, addresses: Sequence[str], context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    tls, name = (context, target.host) if target.is_tls else (None, None)
    reason = "there is no connection"
    for address in addresses:
        try:
            return await asyncio.open_connection(address, target.port, limit=CHUNK_BYTES, ssl=tls, server_hostname=name)
        except ssl.SSLError:
            reason = "its certificate is not valid, or it speaks no TLS"
        except OSError:
            continue
    raise FailedGet(reason)


async def _read_answer(connection: h11.Connection, reader: asyncio.StreamReader, max_bytes: int) -> Answer:
    status, headers, body = 0, dict[str, str](), bytearray()
    while True:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                connection.receive_data(await reader.read(CHUNK_BYTES))
            case h11.Response():
                status = event.status_code
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                if status != 200:
                    return Answer(status, headers, b"")
                if int(headers.get("content-length", 0)) > max_bytes:
                    raise FailedGet(f"it has {headers['content-length']} bytes, the limit is {max_bytes}")
            case h11.Data():
                body += event.data
                if len(body) > max_bytes:
                    raise FailedGet(f"it has more than {max_bytes} bytes")
            case h11.EndOfMessage():
                return Answer(status, headers, bytes(body))
            case h11.ConnectionClosed() | h11.PAUSED:
                raise FailedGet("the connection was closed before the answer's end")
            case _:
                pass  # an informational response
