"""Calls to a replica's gRPC port, with and without Ray's token."""

import os
from collections.abc import Sequence
from pathlib import Path

import grpc
from ray.serve.generated import serve_pb2

from rayinfer_deployments.cluster.ray_token import default_token_path

CALL_S = 10.0
ASGI_SERVICE = serve_pb2.DESCRIPTOR.services_by_name["ASGIService"]
METHODS = [f"/{ASGI_SERVICE.full_name}/{method.name}" for method in ASGI_SERVICE.methods]


def with_token() -> list[tuple[str, str]]:
    """Make the header that Ray's own processes send."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    token = os.environ.get("RAY_AUTH_TOKEN") or (Path(named) if named else default_token_path()).read_text()
    return [("authorization", f"Bearer {token.strip()}")]


def call_all(port: int, headers: Sequence[tuple[str, str]] = ()) -> set[str]:
    """Call each method that a replica has with an empty request; returns the statuses."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return {_call(channel, method, headers) for method in METHODS}


def _call(channel: grpc.Channel, method: str, headers: Sequence[tuple[str, str]]) -> str:
    try:
        channel.unary_unary(method)(b"", timeout=CALL_S, metadata=headers)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"
