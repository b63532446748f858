"""A Ray cluster on one machine, each node in its network namespace: a head without replicas, and workers."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from rayinfer.config import cache_folder
from rayinfer_deployments.cluster.ray_environment import cluster_settings
from support.cluster.node_network import HERE, NodeNetwork
from support.services.polling import wait_until

ROOT = Path(__file__).parents[3]
SABOTAGE = ROOT / "tests" / "support" / "faults" / "sabotage"
HEAD = 1
GCS_PORT = 6379
HTTP_PORT = 8000
REDIS_PORT = 6390
STORE_BYTES = 80_000_000  # nearly the least that Ray takes
START_S = 300.0
WORKER_CPUS = 2
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]


class RayNodes:
    """The cluster's nodes: node 1 is the head, the others are workers."""

    def __init__(
        self,
        network: NodeNetwork,
        folder: Path,
        *,
        step_s: str | None = None,
        with_redis: bool = False,
        hidden: Mapping[int, Sequence[str]] | None = None,
        labels: Mapping[int, str] | None = None,
    ) -> None:
        self.network = network
        self.folder = folder
        self._hidden = hidden or {}  # by node, folders that are empty there
        self._labels = labels or {}  # by node
        self._token = secrets.token_hex(32)
        self._mark = secrets.token_hex(4)
        self._with_redis = with_redis
        self._redis: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._ray_folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short: it holds sockets
        self.switches = folder / "switches"
        self.switches.mkdir(parents=True)
        for node in network.nodes:
            (folder / f"cache-{node}").mkdir()
            (folder / f"cache-{node}" / "kernels").symlink_to(compiled_kernels())  # compiled once
        if step_s is not None:
            (self.switches / "slow-steps").write_text(step_s)

    def __enter__(self) -> "RayNodes":
        try:
            if self._with_redis:
                self._start_redis()
            for node in self.network.nodes:
                self.start(node)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, node: int) -> None:
        """Start a node's Ray, and wait until the head can be reached."""
        head = self.network.address(HEAD)
        joined = (
            ["--head", f"--port={GCS_PORT}", "--include-dashboard=false", "--num-cpus=0"]
            if node == HEAD
            else [f"--address={head}:{GCS_PORT}", f"--num-cpus={WORKER_CPUS}"]
        )
        if node in self._labels:
            joined += [f"--labels={self._labels[node]}"]
        if node == HEAD:
            joined += [f"--temp-dir={self._ray_folder}"]
            # Where it names a head, Ray looks for that among all processes, and takes those of workers for it.
            (self._ray_folder / "ray_current_cluster").unlink(missing_ok=True)
        command = [
            *(*RAY, "start", "--block", "--disable-usage-stats", f"--node-ip-address={self.network.address(node)}"),
            *(f"--object-store-memory={STORE_BYTES}", *joined),
        ]
        self._started.append(self.run(node, command, joins=False))
        if node == HEAD:
            wait_until(lambda: _accepts(head, GCS_PORT), START_S, 0.2)
        wait_until(lambda: self.processes(node, "DashboardAgent"), START_S, 0.2)  # one node after the other

    def run(self, node: int, command: Sequence[str], *, joins: bool = True, **streams: Any) -> subprocess.Popen[bytes]:
        """Start a program on a node, one that joins the Ray there; its output goes to the node's log."""
        address = {"RAY_ADDRESS": f"{self.network.address(HEAD)}:{GCS_PORT}"} if joins else {}
        with (self.folder / f"node-{node}.log").open("ab") as log:
            return subprocess.Popen(
                self.network.inside(node, command, self._hidden.get(node, ())),
                env=self._environment(node) | address,
                start_new_session=True,
                cwd=self.folder,
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log} | streams,
            )

    def ask(self, program: str, *arguments: str, node: int = HEAD) -> Any:
        """Run one of this folder's programs on a node, and return what it prints as JSON."""
        command = [sys.executable, "-m", f"support.cluster.{program}", *arguments]
        asked = self.run(node, command, stdout=subprocess.PIPE)
        answer = asked.communicate(timeout=START_S)[0]
        assert asked.returncode == 0, (self.folder / f"node-{node}.log").read_text()[-4000:]
        return json.loads(answer.decode().splitlines()[-1])

    def rayinfer(self, *arguments: str, node: int = HEAD) -> str:
        """Run the `rayinfer` command on a node, and return what it prints."""
        command = [sys.executable, "-c", "from rayinfer_deployments.cli import main; main()", *arguments]
        asked = self.run(node, command, stdout=subprocess.PIPE)
        answer = asked.communicate(timeout=START_S)[0].decode()
        assert asked.returncode == 0, answer + (self.folder / f"node-{node}.log").read_text()[-4000:]
        return answer

    def deploy(self, config: dict[str, Any]) -> None:
        """Deploy a Serve configuration, as `serve deploy` would through Ray's dashboard."""
        file = self.folder / "serve-config.yaml"
        file.write_text(yaml.safe_dump(config))
        self.ask("deploy_config", str(file))

    def url(self, node: int) -> str:
        """Return the URL of the service at a node's proxy."""
        return f"http://{self.network.address(node)}:{HTTP_PORT}"

    def wait_ready(self, *nodes: int, timeout_s: float = START_S) -> None:
        """Wait until the service is ready at these nodes' proxies."""
        for node in nodes:
            wait_until(lambda node=node: _is_ready(self.url(node)), timeout_s, 0.3)

    def processes(self, node: int | None = None, title: str = "") -> dict[int, str]:
        """Return the titles of a node's processes, or of all nodes', that contain a text, by process id."""
        namespaces = {self.network.namespace(each) for each in ([node] if node is not None else self.network.nodes)}
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                is_of_node = (entry / "ns" / "net").stat().st_ino in namespaces  # Ray writes titles over environments
                shown = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            if is_of_node and shown and title in shown:
                found[int(entry.name)] = shown
        return found

    def kill(self, node: int, title: str = "") -> int:
        """Kill a node's processes whose titles contain a text, at once; returns how many there were."""
        killed = self.processes(node, title)
        for process_id in killed:
            try:
                os.kill(process_id, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return len(killed)

    def close(self) -> None:
        """Kill every process of every node."""
        deadline = time.monotonic() + 20.0
        while self.processes() and time.monotonic() < deadline:
            for node in reversed(self.network.nodes):
                self.kill(node)
            time.sleep(0.2)
        for process in self._started:
            process.wait(10)
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait(10)
        shutil.rmtree(self._ray_folder, ignore_errors=True)

    def _environment(self, node: int) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        paths = [SABOTAGE, ROOT, ROOT / "tests", ROOT / "deployments", ROOT / "kernels"]
        settings = cluster_settings(throughput=False) | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # as KubeRay sets it for workers
            "RAY_raylet_start_wait_time_s": "200",  # on a machine that has much else to do
            "RAYINFER_CACHE": str(self.folder / f"cache-{node}"),
            "PYTHONPATH": ":".join(map(str, paths)),
            "TEST_SWITCHES": str(self.switches),
        }
        if self._with_redis and node == HEAD:
            settings |= {"RAY_REDIS_ADDRESS": f"{HERE}:{REDIS_PORT}", "RAY_external_storage_namespace": self._mark}
        return inherited | settings

    def _start_redis(self) -> None:
        arguments = ["--port", str(REDIS_PORT), "--bind", HERE, "--save", "", "--protected-mode", "no"]
        self._redis = subprocess.Popen(
            ["redis-server", *arguments, "--dir", str(self.folder)], stdout=subprocess.DEVNULL
        )
        wait_until(lambda: _accepts(HERE, REDIS_PORT), 20.0, 0.1)


def compiled_kernels() -> Path:
    """Return the folder of this user's compiled kernels, where they are, or will be."""
    folder = cache_folder() / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
