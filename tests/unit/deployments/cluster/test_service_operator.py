import pytest

from rayinfer.errors import RayinferError
from rayinfer_deployments.cluster.service_operator import SocketOperator, command_line
from rayinfer_deployments.operations.control_socket import ControlSocket

WHERE = ("--address=auto",)


@pytest.mark.parametrize(
    ("operation", "arguments", "line"),
    [
        ("scale", {"num_engines": 2, "model": "a"}, ["scale", *WHERE, "--model=a", "--", "2"]),
        ("scale", {"num_engines": None, "model": None}, ["scale", *WHERE, "--", "auto"]),
        ("drain", {"engine": "--all", "shrink": False}, ["drain", *WHERE, "--", "--all"]),
        ("drain", {"engine": "e", "shrink": True}, ["drain", *WHERE, "--shrink", "--", "e"]),
        ("reload", {"source": "--help", "model": "--b"}, ["reload", *WHERE, "--model=--b", "--", "--help"]),
    ],
)
def test_no_value_of_a_client_becomes_an_option(operation, arguments, line):
    assert command_line(operation, arguments, WHERE) == line


def test_an_unknown_command_is_an_error():
    with pytest.raises(RayinferError, match="no command 'stop'"):
        command_line("stop", {}, WHERE)


async def test_commands_reach_the_services_own_process(tmp_path):
    async def scale(num_engines, model):
        if num_engines > 2:
            raise RayinferError("no node has room")
        return {model: ["e1", "e2"]}

    path = tmp_path / "1.sock"
    with ControlSocket(path, {"scale": scale}):
        operator = SocketOperator(path)
        assert await operator.run("scale", {"num_engines": 2, "model": "tiny"}) == {"tiny": ["e1", "e2"]}
        with pytest.raises(RayinferError, match="no node has room"):
            await operator.run("scale", {"num_engines": 3, "model": "tiny"})
