import socket

import pytest

from rayinfer.errors import RayinferError
from rayinfer_deployments.cli.serve import choose_grpc_port
from rayinfer_deployments.cli.service_run import Service
from rayinfer_deployments.cluster.ray_environment import Profile
from support.services.free_ports import free_port


def service(port, grpc_port=None, ray_address=None):
    return Service(
        models={"m": "m"},
        host="127.0.0.1",
        port=port,
        grpc_port=grpc_port,
        model_settings={},
        routers=1,
        profile=Profile.LATENCY,
        limits={},
        ray_address=ray_address,
        prioritize_engines=True,
        shutdown_grace_s=0.0,
        options={},
        settings={},
    )


@pytest.fixture
def taken():
    """A port that another socket has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_grpc_takes_the_port_behind_the_services_where_it_is_free(taken):
    assert choose_grpc_port(service(taken - 1)) is None
    free = free_port()
    assert choose_grpc_port(service(free - 1)) == free
    assert choose_grpc_port(service(free - 1, ray_address="auto")) is None
    assert choose_grpc_port(service(65535)) is None


def test_a_grpc_port_that_is_asked_for_must_be_free_and_another(taken):
    assert choose_grpc_port(service(8000, grpc_port=0)) is None
    with pytest.raises(RayinferError, match=f"cannot listen on 127.0.0.1:{taken}: .*; choose another --grpc-port"):
        choose_grpc_port(service(8000, grpc_port=taken))
    with pytest.raises(RayinferError, match="must differ, got 8000"):
        choose_grpc_port(service(8000, grpc_port=8000))
