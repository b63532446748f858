"""A model hub on this machine: serves one folder as one repository, as far as `snapshot_download` asks for it.

`huggingface_hub` reads HF_ENDPOINT when it is imported, so whoever downloads from the stub runs in a child process.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "beef"  # 40 hex digits


@dataclass
class HubStub:
    """A running stub: its address, and every request it got as "METHOD path"."""

    repo_id: str
    folder: Path
    endpoint: str = ""
    requests: list[str] = field(default_factory=list)

    def environment(self, home: Path) -> dict[str, str]:
        """Say which variables make a child process use this hub, with its cache under `home`."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }

    def fetched_files(self) -> set[str]:
        """Name the files whose content was asked for."""
        start = f"GET /{self.repo_id}/resolve/{COMMIT}/"
        return {request.removeprefix(start) for request in self.requests if request.startswith(start)}


@contextmanager
def hub_stub(folder: Path, repo_id: str) -> Iterator[HubStub]:
    """Serve `folder` as `repo_id` until the block ends."""
    stub = HubStub(repo_id, folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(stub))
    stub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler_for(stub: HubStub) -> type[BaseHTTPRequestHandler]:
    class Handler(_HubHandler):
        hub = stub

    return Handler


class _HubHandler(BaseHTTPRequestHandler):
    hub: HubStub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: the requests are kept in the stub."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        api, resolve = f"/api/models/{self.hub.repo_id}", f"/{self.hub.repo_id}/resolve/"
        if path.startswith(f"{api}/tree/"):
            self._send_json([self._tree_entry(file) for file in self._files()])
        elif path == api or path.startswith(f"{api}/revision/"):
            siblings = [{"rfilename": self._name(file)} for file in self._files()]
            self._send_json({"id": self.hub.repo_id, "sha": COMMIT, "private": False, "siblings": siblings})
        elif path.startswith(resolve) and (file := self.hub.folder / path.split("/", 5)[5]).is_file():
            self._send_file(file)
        else:
            missing = "EntryNotFound" if path.startswith(resolve) else "RepoNotFound"
            self._send(404, b"", {"X-Error-Code": missing, "X-Error-Message": "Repository not found"})

    def _files(self) -> list[Path]:
        return sorted(path for path in self.hub.folder.rglob("*") if path.is_file())

    def _name(self, file: Path) -> str:
        return file.relative_to(self.hub.folder).as_posix()

    def _tree_entry(self, file: Path) -> dict[str, Any]:
        return {"type": "file", "path": self._name(file), "size": file.stat().st_size, "oid": _digest(file)}

    def _send_file(self, file: Path) -> None:
        content = file.read_bytes()
        headers = {"ETag": f'"{_digest(file)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range", "")
        if not asked.startswith("bytes="):
            self._send(200, content, headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(content) - 1), len(content) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self._send(206, content[start : end + 1], headers)

    def _send_json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
