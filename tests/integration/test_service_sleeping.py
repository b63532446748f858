"""Operators pause a model's engines and put them to sleep, while clients wait and notice nothing but the time."""

import asyncio

import httpx
import pytest

from support.services.polling import wait_until

MODEL = {"model": "other"}


@pytest.fixture
def awake(service):
    """Leave the model as it was found, whatever happens."""
    yield service
    service.http.post("/wake_up", params=MODEL)
    service.http.post("/resume", params=MODEL)


def reason_not_ready(service):
    """Return the reason in /ready's answer for the model, if any."""
    return service.http.get("/ready").json().get("reasons", {}).get("other", "")


@pytest.mark.parametrize("level", [1, 2])
async def test_requests_before_and_during_a_sleep_get_their_texts_afterwards(awake, level):
    body = MODEL | {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
    long, short = body | {"max_tokens": 1000}, body | {"max_tokens": 5, "prompt": "Another"}
    wanted = awake.text_of(**short)
    async with httpx.AsyncClient(base_url=awake.base_url, timeout=120, trust_env=False) as http:
        before = asyncio.create_task(http.post("/v1/completions", json=long))
        await asyncio.to_thread(wait_until, lambda: awake.metric("vllm:num_requests_running", model_name="other") == 1)
        assert (await http.post("/sleep", params=MODEL | {"level": level})).status_code == 200
        assert (await http.get("/is_sleeping", params=MODEL)).json() == {"is_sleeping": True}
        await asyncio.to_thread(wait_until, lambda: reason_not_ready(awake) == "asleep")
        conflict = await http.post("/pause", params=MODEL)
        assert (conflict.status_code, conflict.json()["error"]["code"]) == (409, "wrong_engine_state")
        assert f"asleep at level {level}: it cannot be paused" in conflict.json()["error"]["message"]
        during = asyncio.create_task(http.post("/v1/completions", json=short))
        await asyncio.sleep(0.2)
        assert not before.done()
        assert not during.done()
        assert (await http.post("/wake_up", params=MODEL)).status_code == 200
        assert (await during).json()["choices"][0]["text"] == wanted
        assert len((await before).json()["choices"][0]["text"]) > 500
    assert (reason_not_ready(awake), awake.http.get("/is_sleeping", params=MODEL).json()) == (
        "",
        {"is_sleeping": False},
    )


def test_a_paused_model_is_not_ready_and_the_other_one_answers(awake):
    assert awake.http.post("/pause", params=MODEL).json() == {"status": "paused"}
    wait_until(lambda: reason_not_ready(awake) == "paused")
    assert awake.complete(model="tiny").status_code == 200
    assert awake.http.post("/resume", params=MODEL).json() == {"status": "resumed"}
    wait_until(awake.is_ready)
    assert awake.complete(model="other").status_code == 200
