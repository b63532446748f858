"""Prometheus on this machine, with the configuration and rules that `rayinfer dashboards` writes."""

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from support.services.polling import wait_until

Series = dict[str, Any]  # of the API: labels in `metric`, and `values` as pairs of a time and a text


class PrometheusServer:
    """A server that reads its targets every two seconds."""

    def __init__(self, folder: Path, port: int, extra_targets: dict[str, str]) -> None:
        file = folder / "prometheus.yaml"
        config = yaml.safe_load(file.read_text())
        config["global"] = {"scrape_interval": "2s", "evaluation_interval": "2s"}
        config["scrape_configs"] += [
            {"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in extra_targets.items()
        ]
        file.write_text(yaml.safe_dump(config))
        self._command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
        self._command += [f"--web.listen-address=127.0.0.1:{port}", "--query.lookback-delta=10s", "--log.level=warn"]
        self._log = folder / "prometheus.log"
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stderr=self._log.open("w"))
        wait_until(self._is_ready, timeout_s=30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._http.close()

    def series(self, expression: str, start_s: float, end_s: float, step_s: float = 1.0) -> list[Series]:
        """Evaluate an expression over a time."""
        answer = self._http.get(
            "/api/v1/query_range",
            params={"query": expression, "start": start_s, "end": end_s, "step": step_s},
        )
        assert answer.status_code == 200, f"{expression}: {answer.text}"
        result: list[Series] = answer.json()["data"]["result"]
        return result

    def targets(self) -> dict[str, str]:
        """Return the health of each job's target."""
        active = self._http.get("/api/v1/targets").json()["data"]["activeTargets"]
        return {target["labels"]["job"]: target["health"] for target in active}

    def rule_errors(self) -> list[str]:
        """List the rules that could not be evaluated."""
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return [
            f"{rule['name']}: {rule['lastError']}"
            for group in groups
            for rule in group["rules"]
            if rule.get("lastError")
        ]

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False
