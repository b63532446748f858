"""Operators' HTTP paths: effects, rejections, and absence unless enabled."""

from dataclasses import replace

import httpx
import pytest

from rayinfer.errors import EngineDead, WrongEngineState
from rayinfer.protocols import Pause, Resume, Sleep, Wake
from rayinfer.servers.app import build_app
from support.fakes.fake_engine_client import FakeEngineClient

POSTS = ("/pause", "/resume", "/sleep", "/wake_up")
GETS = ("/is_sleeping", "/is_paused")


class Fleet(FakeEngineClient):
    """Fake fleet of several engines."""

    states_reported = None

    async def control(self, action):
        states = await super().control(action)
        return states if self.states_reported is None else list(self.states_reported)


@pytest.fixture
async def engine():
    return Fleet()


@pytest.fixture
async def operator(models, metrics, engine):
    """A client of a service whose operators' paths are open."""
    models["org/tiny"] = replace(models["org/tiny"], engines=engine)
    app = build_app(models, metrics, enable_engine_control=True)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def test_the_paths_do_not_exist_unless_they_are_asked_for(client):
    for path in POSTS:
        assert (await client.post(path)).status_code == 404
    for path in GETS:
        assert (await client.get(path)).status_code == 404


async def test_an_engine_is_paused_and_resumed(operator, engine):
    assert (await operator.post("/pause")).json() == {"status": "paused"}
    assert (await operator.get("/is_paused")).json() == {"is_paused": True}
    assert (await operator.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await operator.post("/resume")).json() == {"status": "resumed"}
    assert (await operator.get("/is_paused")).json() == {"is_paused": False}
    assert engine.controls == [Pause(), Resume()]


@pytest.mark.parametrize(("query", "level"), [("", 1), ("?level=0", 0), ("?level=1", 1), ("?level=2", 2)])
async def test_an_engine_sleeps_at_the_level_asked_for_and_wakes(operator, engine, query, level):
    slept = await operator.post("/sleep" + query)
    assert (slept.status_code, slept.content) == (200, b"")
    assert (await operator.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert (await operator.get("/is_paused")).json() == {"is_paused": True}
    assert (await operator.post("/wake_up")).status_code == 200
    assert (await operator.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert engine.controls == [Sleep(level), Wake()]


@pytest.mark.parametrize("level", ["3", "-1", "", "deep", "1.0", "٢"])
async def test_another_level_is_refused_by_name_and_reaches_no_engine(operator, engine, level):
    refused = await operator.post("/sleep", params={"level": level})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "level")
    assert "0, 1 or 2" in refused.json()["error"]["message"]
    assert engine.controls == []


@pytest.mark.parametrize(
    ("path", "param"), [("/pause?mode=abort", "mode"), ("/pause?mode=wait", "mode"), ("/wake_up?tags=weights", "tags")]
)
async def test_what_would_do_something_else_than_asked_is_refused(operator, engine, path, param):
    refused = await operator.post(path)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert engine.controls == []


async def test_keeping_requests_is_what_a_pause_does_anyway(operator):
    assert (await operator.post("/pause?mode=keep")).status_code == 200


async def test_what_does_not_go_with_the_state_is_a_conflict(operator, engine):
    engine.control_error = WrongEngineState("the engine is asleep at level 1: it cannot be paused")
    refused = await operator.post("/pause")
    assert refused.status_code == 409
    assert refused.json()["error"] == {
        "message": "the engine is asleep at level 1: it cannot be paused",
        "type": "conflict_error",
        "param": None,
        "code": "wrong_engine_state",
    }


async def test_an_engine_that_does_not_wake_is_an_error(operator, engine):
    engine.control_error = EngineDead("the engine is dead: it could not wake from level 2")
    refused = await operator.post("/wake_up")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")


async def test_a_model_sleeps_when_all_of_its_engines_do_and_is_paused_when_none_runs(operator, engine):
    cases = {
        ("asleep", "paused"): (False, True),
        ("asleep", "running"): (False, False),
        ("asleep", "asleep"): (True, True),
    }
    for engine.states_reported, (sleeps, rests) in cases.items():
        assert (await operator.get("/is_sleeping")).json() == {"is_sleeping": sleeps}
        assert (await operator.get("/is_paused")).json() == {"is_paused": rests}


async def test_with_several_models_the_query_says_which(operator, models, engine):
    other = FakeEngineClient()
    models["b"] = replace(models["org/tiny"], name="b", engines=other)
    unnamed = await operator.post("/pause")
    assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "model")
    assert (await operator.post("/pause?model=b")).status_code == 200
    assert (engine.controls, other.controls) == ([], [Pause()])
    assert (await operator.get("/is_paused?model=org/tiny")).json() == {"is_paused": False}
    assert (await operator.post("/pause?model=unknown")).status_code == 404


async def test_a_model_whose_engines_are_not_ours_to_stop_says_so(operator, models):
    models["org/tiny"] = replace(models["org/tiny"], engines=None)
    refused = await operator.post("/pause")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")


async def test_ready_reports_that_the_model_sleeps(operator, generator):
    generator.not_ready = "asleep"
    assert (await operator.get("/ready")).json() == {"ready": False, "reasons": {"org/tiny": "asleep"}}
