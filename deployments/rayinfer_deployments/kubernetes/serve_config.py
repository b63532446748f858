"""The `serveConfigV2` of a service: a file for `serve deploy`, which `rayinfer check-config` accepts."""

from typing import Any

from rayinfer_deployments.applications import ROUTER
from rayinfer_deployments.config_check import OUR_BUILDER
from rayinfer_deployments.kubernetes.service_file import ServiceFile

GRPC_SERVICER = "rayinfer_deployments.router.grpc_servicer:add_inference_service"
HTTP_PORT = 8000
GRPC_PORT = 9000


def serve_config(service: ServiceFile) -> dict[str, Any]:
    """Build the configuration; Serve's proxies listen on every node with a replica."""
    application: dict[str, Any] = {
        "name": service.name,
        "route_prefix": "/",
        "import_path": OUR_BUILDER,
        "args": service.app | {"models": service.placed_models(), "num_routers": service.routers},
    }
    limits = service.profile.limits | service.limits
    if limits:
        application["deployments"] = [{"name": ROUTER, "user_config": limits}]
    config: dict[str, Any] = {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": HTTP_PORT, "request_timeout_s": service.request_timeout_s},
    }
    if service.grpc:
        config["grpc_options"] = {"port": GRPC_PORT, "grpc_servicer_functions": [GRPC_SERVICER]}
    return config | {
        "logging_config": {"encoding": "JSON", "log_level": "WARNING", "enable_access_log": False},
        "applications": [application],
    }
