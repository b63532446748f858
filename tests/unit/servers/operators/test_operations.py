import httpx
import pytest

from rayinfer.errors import RayinferError
from rayinfer.servers.app import build_app
from rayinfer.servers.operators.operations import Operations


class RecordedOperator:
    """Operator that notes commands, and refuses them with a given error."""

    def __init__(self):
        self.commands = []
        self.error = None

    async def run(self, operation, arguments):
        """Note a command."""
        self.commands.append((operation, dict(arguments)))
        if self.error is not None:
            raise self.error
        return {"engines": ["e1"]}


@pytest.fixture
def operator():
    return RecordedOperator()


@pytest.fixture
async def machine(models, metrics, operator):
    app = build_app(models, metrics, enable_engine_control=True, operations=Operations(operator=operator))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "command"),
    [
        ("scale", {"engines": 3}, ("scale", {"num_engines": 3, "model": "org/tiny"})),
        ("scale", {"engines": None}, ("scale", {"num_engines": None, "model": "org/tiny"})),
        ("drain", {"engine": "e1", "shrink": True}, ("drain", {"engine": "e1", "shrink": True})),
        ("reload", {"source": "--help"}, ("reload", {"source": "--help", "model": "org/tiny"})),
    ],
)
async def test_commands_reach_the_operator(machine, operator, path, body, command):
    response = await machine.post(f"/operations/{path}", json=body)
    assert (response.status_code, response.json()) == (200, {"result": {"engines": ["e1"]}})
    assert operator.commands == [command]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("scale", {}, "engines"),
        ("scale", {"engines": 0}, "engines"),
        ("scale", {"engines": True}, "engines"),
        ("scale", {"engines": 2, "more": 1}, "more"),
        ("scale", {"engines": 2, "model": 3}, "model"),
        ("drain", {}, "engine"),
        ("drain", {"engine": "e1", "shrink": "yes"}, "shrink"),
        ("reload", {"source": ""}, "source"),
    ],
)
async def test_wrong_commands_are_refused_by_their_field(machine, operator, path, body, param):
    response = await machine.post(f"/operations/{path}", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert operator.commands == []


async def test_a_command_that_fails_is_a_conflict_with_its_reason(machine, operator):
    operator.error = RayinferError("e1 is the only engine")
    response = await machine.post("/operations/drain", json={"engine": "e1"})
    assert (response.status_code, response.json()["error"]["message"]) == (409, "e1 is the only engine")


async def test_paths_are_there_only_with_engine_control(client):
    assert (await client.post("/operations/scale", json={"engines": 1})).status_code == 404
