"""One Ray cluster and one application with two tiny models for the whole session; special cases deploy beside it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayinfer_deployments.cluster.ray_environment import set_ray_settings

set_ray_settings(owns_ray=True)  # before anything imports ray, which reads the environment

import ray  # noqa: E402
from ray import serve  # noqa: E402

from rayinfer_deployments.app_args import llm_app_args  # noqa: E402
from rayinfer_deployments.applications import build_llm_app  # noqa: E402
from rayinfer_deployments.operations.service_startup import LOGGING  # noqa: E402
from support.services.free_ports import free_port  # noqa: E402
from support.services.polling import wait_until  # noqa: E402
from support.services.service_client import ServiceClient  # noqa: E402
from support.tiny_models.tiny_checkpoints import make_tiny_llama  # noqa: E402

GRPC_SERVICER = "rayinfer_deployments.router.grpc_servicer:add_inference_service"
SMALL = {"num_cpus": 0.1, "num_threads": 1, "drain_timeout_s": 5.0}  # of a machine with two cores


@pytest.fixture(scope="session")
def serve_grpc_port() -> int:
    """The port of the gRPC of Serve's proxy."""
    return free_port()


@pytest.fixture(scope="session")
def shared_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep KV block stores in a folder of the session's own."""
    folder = tmp_path_factory.mktemp("shared-memory")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAYINFER_SHARED_MEMORY", str(folder))
        yield folder


@pytest.fixture(scope="session")
def cluster(serve_grpc_port: int, shared_memory: Path) -> Iterator[str]:
    """Start Ray and Serve; yields the address under which all applications answer, and ends both."""
    port = free_port()
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False)
    try:
        grpc_options = {"port": serve_grpc_port, "grpc_servicer_functions": [GRPC_SERVICER]}
        serve.start(http_options={"host": "127.0.0.1", "port": port}, grpc_options=grpc_options)
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two different random models that may run for thousands of tokens."""
    folder = tmp_path_factory.mktemp("models")
    models = {}
    for seed, name in enumerate(("tiny", "other")):
        (folder / name).mkdir()
        models[name] = make_tiny_llama(folder / name, seed=seed, max_position_embeddings=8192)
    return models


Deploy = Callable[..., contextlib.AbstractContextManager[ServiceClient]]


@pytest.fixture(scope="session")
def deploy(cluster: str) -> Deploy:
    """Deploy an application under its own prefix, wait until it is ready, and delete it at the end."""

    @contextlib.contextmanager
    def deploy_application(name: str, models: list[dict[str, Any]], **settings: Any) -> Iterator[ServiceClient]:
        application = build_llm_app(llm_app_args({"models": [SMALL | model for model in models], **settings}))
        try:
            # As `rayinfer serve` does: deploying it again with other logging reconfigures its replicas.
            serve.run(application, name=name, route_prefix=f"/{name}", logging_config=LOGGING)
            with httpx.Client(base_url=f"{cluster}/{name}", timeout=60, trust_env=False) as http:
                client = ServiceClient(http)
                wait_until(client.is_ready)
                yield client
        finally:
            serve.delete(name)

    return deploy_application


@pytest.fixture(scope="session")
def grpc_port() -> int:
    """The port of the shared service's gRPC."""
    return free_port()


@pytest.fixture(scope="session")
def service(
    deploy: Deploy, tiny_models: dict[str, Path], grpc_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceClient]:
    """Two models behind one address, and the example models beside them."""
    models = [{"name": name, "model": str(folder), "num_kv_blocks": 4096} for name, folder in tiny_models.items()]
    settings = {"grpc_port": grpc_port, "batches_folder": str(tmp_path_factory.mktemp("batches"))}
    with deploy("service", models, enable_engine_control=True, with_examples=True, **settings) as client:
        yield client
