"""A web server of images with the answers that a test sets, and a resolver that gives chosen addresses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field


def answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """Write an answer over HTTP/1.1."""
    named = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


@dataclass
class ImageHost:
    """A server on loopback whose answers are given by path; those of None never come."""

    answers: dict[str, bytes | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # paths, in order
    heads: list[str] = field(default_factory=list)  # of the requests
    port: int = 0
    most_at_once: int = 0
    _open: int = 0

    @property
    def name(self) -> str:
        """The name and port that tests allow."""
        return f"images.test:{self.port}"

    def url(self, path: str, host: str = "images.test") -> str:
        """Return the URL of a path under a name."""
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            self.heads.append(head)
            self.asked.append(path)
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
            try:
                content = self.answers.get(path, answer(status="404 Not Found"))
                if content is None:
                    await reader.read()  # until the client leaves
                else:
                    await asyncio.sleep(0.02)
                    writer.write(content)
                    await writer.drain()
            finally:
                self._open -= 1
        writer.close()


@contextlib.asynccontextmanager
async def image_host(**answers: bytes | None) -> AsyncIterator[ImageHost]:
    """Serve answers under the paths of their names while the block lasts."""
    host = ImageHost({f"/{name}": content for name, content in answers.items()})
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()


@dataclass
class FakeResolver:
    """Resolver whose answers are given by name, one list for each look-up; the last one stays."""

    addresses: dict[str, list[Sequence[str]]]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the next addresses of a host; raises OSError for an unknown one."""
        self.asked.append(host)
        if host not in self.addresses:
            raise OSError(f"{host}: unknown")
        answers = self.addresses[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]
