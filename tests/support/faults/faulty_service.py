"""A service whose processes may be killed, frozen and broken: its host, its addresses, its processes, its switches."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from rayinfer.metrics.families import ROUTER
from rayinfer_deployments.cluster.process_tree import read_process
from support.faults.fault_models import SERVED_NAME, FaultModel
from support.services.free_ports import free_port
from support.services.polling import wait_until
from support.services.service_client import ServiceClient

SABOTAGE = Path(__file__).parent / "sabotage"
ROOT = Path(__file__).parents[3]
START_S = 240.0  # a machine may have other work; eight processes that import torch are slow as well
SMALL = {"num_cpus": 0.1, "num_threads": 1, "drain_timeout_s": 5.0}  # of a machine with two cores


class Host:
    """A Ray with Serve in processes of its own."""

    def __init__(
        self,
        folder: Path,
        model: FaultModel,
        *,
        with_proxy: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.model = model  # that its services serve, unless they say otherwise
        self.switches = folder / "switches"
        self.switches.mkdir(parents=True)
        if model.step_s is not None:
            (self.switches / "slow-steps").write_text(model.step_s)
        self.proxy_port = free_port() if with_proxy else None
        paths = [
            SABOTAGE,
            ROOT,
            ROOT / "tests",
            ROOT / "deployments",
            ROOT / "kernels",
            os.environ.get("PYTHONPATH", ""),
        ]
        self._log = (folder / "host.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.services.service_host", json.dumps({"proxy_port": self.proxy_port})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            start_new_session=True,
            env=os.environ
            | {"PYTHONPATH": ":".join(map(str, paths)), "TEST_SWITCHES": str(self.switches)}
            | (environment or {}),
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._take() == "ready", f"it does not start; its log is {self._log.name}"

    def ask(self, do: str, name: str, **fields: Any) -> Any:
        """Have the host do something, and wait until it says that it has."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "name": name} | fields) + "\n")
        answer = self._take()
        assert "error" not in answer, answer["error"]
        return answer["answer"]

    def end(self) -> None:
        """End all processes; those that stay are killed."""
        assert self._process.stdin is not None
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        for process in [*family, psutil.Process(self._process.pid)] if self._process.poll() is None else family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._reader.join()
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put('{"error": "the host has ended"}')

    def _take(self) -> Any:
        try:
            return json.loads(self._answers.get(timeout=START_S))
        except queue.Empty:
            raise AssertionError(f"the host does not answer; its log is {self._log.name}") from None


@dataclass(frozen=True, kw_only=True)
class Remains:
    """Resources still held by requests whose clients are gone."""

    kv_blocks: int  # with readers, in engines
    running: int  # requests in engines' batches
    waiting: int  # requests in engines' queues
    queued: int  # requests in the routers' queues
    connections: int

    @property
    def total(self) -> int:
        """All of it together."""
        return sum(asdict(self).values())

    def __str__(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in asdict(self).items() if count)


class FaultyService(ServiceClient):
    """One application of a host."""

    def __init__(self, host: Host, name: str, models: list[dict[str, Any]], **settings: Any) -> None:
        self.host = host
        self.name = name
        self.port = free_port()
        self.args = {"models": [SMALL | model for model in models], "listen_port": self.port, **settings}
        self.url = f"http://127.0.0.1:{self.port}"
        if host.proxy_port is not None:
            del self.args["listen_port"]
            self.port, self.url = host.proxy_port, f"http://127.0.0.1:{host.proxy_port}/{name}"
        super().__init__(httpx.Client(base_url=self.url, timeout=60, trust_env=False))
        self._count(self.args["models"])
        host.ask("deploy", name, args=self.args)
        wait_until(self.is_complete, START_S)

    def is_complete(self) -> bool:
        """Return whether it is ready with all its engines."""
        with contextlib.suppress(httpx.TransportError):
            return self.is_ready() and len(self.engine_names()) == self.num_engines
        return False

    def _count(self, models: list[dict[str, Any]]) -> None:
        self.num_engines = sum(model.get("num_replicas", 1) for model in models)
        self.num_ranks = max(_num_ranks(model) for model in models)  # of each engine: those of a service are alike
        self.num_engine_processes = self.num_engines * self.num_ranks

    def is_answering(self) -> bool:
        """Return whether a new connection gets through to it."""
        try:
            return httpx.get(f"{self.url}/health", timeout=2.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def complete(self, prompt: Any = "Once upon a time", model: str = SERVED_NAME, **fields: Any) -> httpx.Response:
        """Ask for a short answer."""
        return super().complete(prompt, model, **fields)

    def redeploy(self, **changes: Any) -> None:
        """Replace it by a version with other settings; returns before that has happened."""
        self.args = self.args | changes
        self._count(self.args["models"])
        self.host.ask("deploy", self.name, args=self.args)

    def scale(self, num_engines: int) -> None:
        """Give its model so many engines, by `rayinfer scale`'s way; returns before that has happened."""
        (model,), before = self.args["models"], self.args
        self.args = before | {"models": [model | {"num_replicas": num_engines}]}
        self._count(self.args["models"])
        self.host.ask("scale", self.name, args=before, num_engines=num_engines)

    def delete(self) -> None:
        """End it."""
        self.http.close()
        self.host.ask("delete", self.name)
        wait_until(lambda: not self.pids(), START_S)

    def engine_names(self) -> set[str]:
        """The engines that its router knows."""
        return self.label_values("rayinfer_kv_blocks_total", "engine")

    def pids(self, *roles: str) -> list[int]:
        """The living processes with these roles."""
        found = self.host.ask("processes", self.name)
        roles = roles or ("engine", "engine_replica", "router")
        return sorted(process["pid"] for process in found if process["role"] in roles and read_process(process["pid"]))

    def known_engines(self) -> list[int]:
        """The living processes of the engines that its router knows, and not of those that are being built."""
        names = self.engine_names()
        found = self.host.ask("processes", self.name)
        engines = [process for process in found if process["role"] == "engine" and process["group"] in names]
        return sorted(process["pid"] for process in engines if read_process(process["pid"]))

    def known_groups(self) -> list[list[int]]:
        """The processes of each engine that its router knows and that has all of them, by rank."""
        names = self.engine_names()
        groups: dict[str, dict[int, int]] = {}
        for process in self.host.ask("processes", self.name):
            if process["role"] == "engine" and process["group"] in names and read_process(process["pid"]):
                groups.setdefault(process["group"], {})[process["rank"]] = process["pid"]
        whole = [groups[name] for name in sorted(groups) if len(groups[name]) == self.num_ranks]
        return [[ranks[rank] for rank in sorted(ranks)] for ranks in whole]

    def owner_of(self, pid: int) -> int:
        """The replica that owns an engine's process."""
        found = self.host.ask("processes", self.name)
        (group,) = {process["group"] for process in found if process["pid"] == pid}
        (owner,) = (
            process["pid"] for process in found if process["role"] == "engine_replica" and process["group"] == group
        )
        return int(owner)

    def status(self) -> dict[str, Any]:
        """Return Serve's status of it."""
        return dict(self.host.ask("status", self.name))

    def put_switch(self, name: str, text: str = "") -> None:
        """Switch something on, or a protection off (`sabotage/sitecustomize.py` lists them)."""
        unfinished = self.host.switches / f".{name}"
        unfinished.write_text(text)
        unfinished.replace(self.host.switches / name)

    def take_switch(self, name: str) -> None:
        """Take it back."""
        (self.host.switches / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def switched(self, *names: str, **settings: str) -> Iterator[None]:
        """Have switches on while the block lasts; underscores in keywords are hyphens, and empty names nothing."""
        switches = dict.fromkeys(filter(None, names), "")
        switches |= {name.replace("_", "-"): text for name, text in settings.items()}
        for name, text in switches.items():
            self.put_switch(name, text)
        try:
            yield
        finally:
            for name in switches:
                self.take_switch(name)
            self.keep_pace()

    def keep_pace(self) -> None:
        """Let steps take as long as they usually do."""
        if self.host.model.step_s is None:
            self.take_switch("slow-steps")
        else:
            self.put_switch("slow-steps", self.host.model.step_s)

    # Whether anything is left

    def remains(self) -> "Remains":
        """Count what is still in use, here and at its clients; engines report at least once a second."""
        self.http.close()
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        waiting, queued = (
            self.metric("vllm:num_requests_waiting"),
            self.metric("vllm:num_requests_waiting", engine=ROUTER),
        )
        counts = {
            "kv_blocks": self.kv_blocks_used,
            "running": self.metric("vllm:num_requests_running"),
            "waiting": waiting - queued,
            "queued": queued,
        }
        self.http.close()
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        return Remains(**{name: int(count) for name, count in counts.items()}, connections=self.num_sockets())

    def num_leaked(self) -> int:
        """Count all of that together."""
        return self.remains().total

    def num_sockets(self) -> int:
        """Count the open connections to its port."""
        return len(self._client_ports())

    def has_client(self, port: int) -> bool:
        """Return whether a client with this port has an open connection."""
        return port in self._client_ports()

    def _client_ports(self) -> list[int]:
        return [
            connection.raddr.port
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_ESTABLISHED and connection.laddr.port == self.port
        ]


def _num_ranks(model: dict[str, Any]) -> int:
    return int(model.get("tensor_parallel_size", 1) * model.get("pipeline_parallel_size", 1))


def kill(pid: int) -> None:
    """End a process at once."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
