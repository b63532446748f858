"""Small programs that behave like peers: engines behind an adapter file, servers, and llama.cpp's own programs."""

import sys
import textwrap
from pathlib import Path

from rayinfer.benchmark.peers.engine_process import engine_process
from rayinfer.benchmark.peers.system_under_test import Contender, ServerCommand, Setup

SERVER = """
    import json, sys
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            tokens = body["max_tokens"] - MISSING_TOKENS
            self.send_response(200)
            self.end_headers()
            for chunk in ({"choices": [{"text": "x"}]}, {"choices": [], "usage": {"completion_tokens": tokens}}):
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n")
            self.wfile.write(b"data: [DONE]\\n\\n")

        def log_message(self, *arguments):
            pass

    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def make_setup(folder: Path, *, cpu_flags: frozenset[str] = frozenset(), **programs: Path) -> Setup:
    """A setup whose peers' folder is `folder`, for one thread."""
    return Setup(
        model="models/tiny",
        model_folder=folder / "tiny",
        vocab_size=200,
        peers_folder=folder,
        cpus=(0,),
        cpu_flags=cpu_flags,
        programs=programs,
    )


def make_adapter(folder: Path, *, opening: str = "pass", answer: str = "return lengths") -> Path:
    """An adapter of an engine that answers at once."""
    adapter = folder / "adapter.py"
    adapter.write_text(
        "import time\nDISTRIBUTION = 'pytest'\n"
        f"def open_engine(settings):\n    {opening}\n"
        f"    def answer(prompts, lengths):\n        print('noise')\n        {answer}\n    return answer\n"
    )
    return adapter


def make_server(folder: Path, *, missing_tokens: int = 0, name: str = "server.py") -> ServerCommand:
    """A server that is ready at once and answers every request with one chunk."""
    script = folder / name
    script.write_text(textwrap.dedent(SERVER).replace("MISSING_TOKENS", str(missing_tokens)))
    return ServerCommand(
        arguments=[sys.executable, str(script), "{port}"], ready_path="/health", model="m", version="1.0"
    )


def make_program(path: Path, text: str) -> Path:
    """A Python program that can be started by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    path.chmod(0o755)
    return path


def make_contender(
    setup: Setup,
    adapter: Path | None,
    *,
    name: str = "fake",
    server: ServerCommand | None = None,
    weight_bits: int = 16,
) -> Contender:
    """A contender over an adapter, a server, or both."""
    return Contender(
        name=name,
        mode="bfloat16",
        weight_bits=weight_bits,
        open_engine=(lambda log: engine_process(adapter, {}, setup=setup, log=log)) if adapter else None,
        server=server,
    )
