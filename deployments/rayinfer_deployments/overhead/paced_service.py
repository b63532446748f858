"""Services over engines without a model, on a Ray of their own: open, and with many keys."""

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rayinfer.access.api_key import KeyLimits, digest_of, new_key, new_secret
from rayinfer.benchmark.control_plane.overhead.paced_engine import paced_description, printable_token_ids
from rayinfer.benchmark.control_plane.overhead.router_report import Variant
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer_deployments.app_args import LLMAppArgs, llm_app_args
from rayinfer_deployments.applications import build_app_over
from rayinfer_deployments.cluster.managed_cluster import ManagedCluster
from rayinfer_deployments.cluster.process_priority import deprioritize_control_plane
from rayinfer_deployments.cluster.ray_environment import Profile
from rayinfer_deployments.cluster.service_record import service_url
from rayinfer_deployments.operations.service_startup import deploy, redeploy, wait_until_ready
from rayinfer_deployments.overhead.paced_replica import Pace, paced_engines

APPLICATION, APPLICATION_WITH_KEYS = "rayinfer", "rayinfer-with-keys"
PREFIX_WITH_KEYS = "/with-keys"  # behind Serve's proxies, which all applications share
HOST = "127.0.0.1"
MODEL = "paced"
PLENTY = 10**9  # each limit is checked and counted, and none is reached


@dataclass(frozen=True, kw_only=True, slots=True)
class ServicePlan:
    """Settings of one measurement."""

    model: str  # its tokenizer makes the text
    with_proxy: bool  # whether clients come through Serve's proxies
    variants: Sequence[Variant] = (Variant.SSE,)
    stream_interval: int | None = None  # tokens sent at once; None: as the profile has it
    num_streams: int = 32
    interval_s: float = 0.02
    input_len: int = 128
    output_len: int = 256
    requests_per_stream: int = 2
    num_first_tokens: int = 200  # requests sent one after the other
    num_runs: int = 3
    idle_s: float = 5.0
    num_keys: int = 10_000  # of a service with keys


@dataclass(frozen=True, kw_only=True, slots=True)
class PacedService:
    """A running service over engines without a model."""

    application: str
    url: str
    grpc_address: str
    ray_address: str
    vocab_size: int
    api_key: str | None = None


@contextlib.contextmanager
def paced_service(profile: Profile, plan: ServicePlan) -> Iterator[PacedService]:
    """Start an open service on a Ray of its own, and stop it; Ray's settings must be in the environment."""
    with ManagedCluster() as ray:
        yield _start_open(profile, plan, ray)


@contextlib.contextmanager
def paced_services(profile: Profile, plan: ServicePlan) -> Iterator[dict[Variant, PacedService]]:
    """Start the services that a plan's variants need on a Ray of their own, and stop them."""
    with tempfile.TemporaryDirectory() as folder, ManagedCluster() as ray:
        without = _start_open(profile, plan, ray)
        needs_keys = any(variant.has_keys for variant in plan.variants)
        with_keys = _start_with_keys(profile, plan, ray, Path(folder), without.url) if needs_keys else without
        yield {variant: with_keys if variant.has_keys else without for variant in plan.variants}


def _start_open(profile: Profile, plan: ServicePlan, ray: ManagedCluster) -> PacedService:
    """Deploy the first service of a Ray."""
    args, pace, port = _app_args(profile, plan), _pace(plan), _free_port()
    listens = {} if plan.with_proxy else {"listen_port": port}
    args = args.model_copy(update=listens)
    deploy(build_app_over(paced_engines(pace), args), APPLICATION, HOST, port, with_proxy=plan.with_proxy)
    wait_until_ready(APPLICATION, HOST, port, check=ray.check, on_progress=lambda reason: None)
    return _running(APPLICATION, service_url(HOST, port), args, pace, ray)


def _start_with_keys(profile: Profile, plan: ServicePlan, ray: ManagedCluster, folder: Path, url: str) -> PacedService:
    """Deploy another service beside it, with many keys, limits of the client's key and an access log."""
    pace, port = _pace(plan), _free_port()
    secret = write_keys(folder / "keys.jsonl", plan.num_keys)
    files = {"api_keys": str(folder / "keys.jsonl"), "access_log": str(folder / "access.log")}
    listens = {} if plan.with_proxy else {"listen_port": port}
    args = _app_args(profile, plan).model_copy(update=files | listens)
    url = url + PREFIX_WITH_KEYS if plan.with_proxy else service_url(HOST, port)
    redeploy(build_app_over(paced_engines(pace), args), APPLICATION_WITH_KEYS, PREFIX_WITH_KEYS)

    def is_ready() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/ready", trust_env=False).status_code == 200
        return False

    wait_until_ready(
        APPLICATION_WITH_KEYS, HOST, port, check=ray.check, on_progress=lambda reason: None, is_ready=is_ready
    )
    return _running(APPLICATION_WITH_KEYS, url, args, pace, ray, secret)


def write_keys(path: Path, num_keys: int) -> str:
    """Write a file of so many keys; returns the secret of the last, whose limits are all set."""
    secret = new_secret()
    limits = KeyLimits(
        requests_per_minute=PLENTY,
        tokens_per_minute=PLENTY,
        concurrent_requests=PLENTY,
        output_tokens_per_day=PLENTY,
        models=(MODEL,),
    )
    with path.open("w") as file:
        for number in range(num_keys):
            is_last = number == num_keys - 1
            name, of_secret = f"key-{number}", secret if is_last else new_secret()
            key = new_key(
                key_id=name,
                name=name,
                sha256=digest_of(of_secret).hex(),
                tenant=name,
                limits=limits if is_last else KeyLimits(),
                created_s=time.time(),
            )
            file.write(key.line() + "\n")
    return secret


def _app_args(profile: Profile, plan: ServicePlan) -> LLMAppArgs:
    interval = {} if plan.stream_interval is None else {"stream_interval": plan.stream_interval}
    settings: dict[str, Any] = {"models": [{"name": MODEL, "model": plan.model}], "limits": profile.limits | interval}
    return llm_app_args(settings | {"listen_host": HOST, "grpc_port": _free_port()})


def _pace(plan: ServicePlan) -> Pace:
    tokenizer = Tokenizer.from_folder(resolve_model(plan.model))
    return Pace(
        description=paced_description(MODEL, tokenizer),
        token_ids=printable_token_ids(tokenizer),
        interval_s=plan.interval_s,
        max_running=4 * plan.num_streams,
    )


def _running(
    application: str, url: str, args: LLMAppArgs, pace: Pace, ray: ManagedCluster, secret: str | None = None
) -> PacedService:
    deprioritize_control_plane(os.getpid(), application)
    return PacedService(
        application=application,
        url=url,
        grpc_address=f"{HOST}:{args.grpc_port}",
        ray_address=ray.address,
        vocab_size=pace.description.vocab_size,
        api_key=secret,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
