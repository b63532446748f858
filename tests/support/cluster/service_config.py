"""Serve configurations of tiny models, as `rayinfer build` emits them."""

from pathlib import Path
from typing import Any

from rayinfer_deployments.kubernetes.serve_config import serve_config
from rayinfer_deployments.kubernetes.service_file import service_of

SMALL = {"num_cpus": 0.1, "num_threads": 1, "drain_timeout_s": 5.0, "dtype": "float32", "num_kv_blocks": 2048}


def built_config(*models: dict[str, Any], routers: int = 1, **app: Any) -> dict[str, Any]:
    """Return the serveConfigV2 of a service with these models, without gRPC."""
    service = service_of(
        {
            "name": "rayinfer",
            "app": {"models": [SMALL | model for model in models], "router_num_cpus": 0.1} | app,
            "routers": routers,
            "grpc": False,
            "workers": [{"name": "small", "cpus": 4, "pods": 2}],
        }
    )
    return serve_config(service)


def model_args(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of one of them."""
    return {"name": name, "model": str(folder)} | settings
