"""A service with two models, keys and a batch, and a Ray node with its agents, for Prometheus to read."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from support.services.free_ports import free_port
from support.services.polling import wait_until

SECRETS = {"alice": "ri-alice-0123456789abcdef0123456789", "bob": "ri-bob-0123456789abcdef0123456789ab"}
MODEL, PREDICTOR = "smollm2-135m", "all-minilm-l6-v2"
BATCH_ROWS = 60


@contextmanager
def _process(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, and end the group."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=os.environ | environment
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def watched_service(folder: Path) -> Iterator["WatchedService"]:
    """Start `rayinfer serve` with two engines of each model."""
    port, command = free_port(), str(Path(sys.executable).with_name("rayinfer"))
    options = [
        "--port",
        str(port),
        "--grpc-port",
        "0",
        "--replicas",
        "2",
        "--num-threads",
        "1",
    ]
    options += ["--batches-folder", str(folder / "batches")]
    keys = " ".join(f"{name}={secret}" for name, secret in SECRETS.items())
    with _process(
        [command, "serve", MODEL, PREDICTOR, *options], folder / "serve.log", RAYINFER_API_KEYS=keys
    ) as process:
        service = WatchedService(command, port)
        wait_until(lambda: _is_ready(service, process, folder / "serve.log"), timeout_s=170, interval_s=0.5)
        yield service


@contextmanager
def ray_node(folder: Path) -> Iterator[int]:
    """Start a Ray node with its agents, whose metrics are at the port that this yields: `serve` has none of these."""
    ray, ports = shutil.which("ray", path=str(Path(sys.executable).parent)), [free_port() for _ in range(4)]
    assert ray is not None
    options = [f"--port={ports[0]}", f"--metrics-export-port={ports[1]}", f"--dashboard-agent-listen-port={ports[2]}"]
    options += [f"--ray-client-server-port={ports[3]}", "--include-dashboard=false", "--num-cpus=1"]
    options += ["--object-store-memory=80000000", "--disable-usage-stats", f"--temp-dir=/tmp/ray-{os.getpid()}"]
    with _process([ray, "start", "--head", "--block", *options], folder / "ray.log", RAY_AUTH_MODE="disabled"):
        yield ports[1]
    shutil.rmtree(f"/tmp/ray-{os.getpid()}", ignore_errors=True)


def _is_ready(service: "WatchedService", process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        return service.http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


class WatchedService:
    """A running service, and the load that it gets."""

    def __init__(self, command: str, port: int) -> None:
        self.port = port
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        self._command = command
        self._is_over = threading.Event()

    def load(self, seconds: float) -> None:
        """Send chats and texts of two tenants and a batch; kill an engine after two fifths of the time."""
        threads = [threading.Thread(target=self._chat, args=(name,)) for name in ("alice", "alice", "bob")]
        threads += [threading.Thread(target=self._embed, args=(name,)) for name in SECRETS]
        for thread in threads:
            thread.start()
        self._send_batch()
        time.sleep(0.4 * seconds)
        self._kill_an_engine()
        time.sleep(0.4 * seconds)
        self._fill_the_queue()
        time.sleep(0.2 * seconds)
        self._is_over.set()
        for thread in threads:
            thread.join(60)

    def _chat(self, tenant: str) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            body = {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"Tell me a short story. It is number {number % 7}."}],
                "max_tokens": 24 + 8 * (number % 5),
                "stream": True,
            }
            self._post("/v1/chat/completions", tenant, body)
            self._post("/v1/completions", tenant, {"model": MODEL, "prompt": "Once", "temperature": -(number % 2)})

    def _embed(self, tenant: str) -> None:
        number = 0
        while not self._is_over.is_set():
            number += 1
            texts = [f"Text number {(number + index) % 40} of a library." for index in range(4)]
            self._post("/v1/embeddings", tenant, {"model": PREDICTOR, "input": texts})
            time.sleep(0.1)

    def _send_batch(self) -> None:
        rows = [
            {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": MODEL, "prompt": f"{number}:", "max_tokens": 12},
            }
            for number in range(BATCH_ROWS)
        ]
        headers = {"authorization": f"Bearer {SECRETS['alice']}"}
        content = "\n".join(json.dumps(row) for row in rows).encode()
        file = self.http.post(
            "/v1/files", headers=headers, files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}
        ).raise_for_status()
        body = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        self.http.post("/v1/batches", headers=headers, json=body).raise_for_status()

    def _kill_an_engine(self) -> None:
        listed = subprocess.run(
            [self._command, "ps", "--port", str(self.port), "--json"], capture_output=True, text=True, timeout=60
        )
        metrics = self.http.get("/metrics", headers={"authorization": f"Bearer {SECRETS['alice']}"}).text
        names = re.findall(rf'rayinfer_steps_total{{model_name="{MODEL}",engine="([^"]+)"', metrics)
        names += re.findall(rf'rayinfer_steps_total{{engine="([^"]+)",model_name="{MODEL}"', metrics)
        processes = [each for each in json.loads(listed.stdout) if each["role"] == "engine"]
        victim = next(each for each in processes if any(name in str(each) for name in names))
        os.kill(victim["pid"], signal.SIGKILL)

    def _fill_the_queue(self) -> None:
        """Have some requests rejected, as only one may wait."""
        limits = [self._command, "limits", "--port", str(self.port), "--set"]
        subprocess.run([*limits, "max_waiting_requests=1"], check=True, capture_output=True, timeout=60)
        time.sleep(2.5)
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 24}
        crowd = [threading.Thread(target=self._post, args=("/v1/completions", "bob", body)) for _ in range(200)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join(120)
        subprocess.run([*limits, "max_waiting_requests=256"], check=True, capture_output=True, timeout=60)

    def _post(self, path: str, tenant: str, body: dict[str, object]) -> int:
        headers = {"authorization": f"Bearer {SECRETS[tenant]}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120, trust_env=False) as http:
            return http.post(path, json=body, headers=headers).status_code
