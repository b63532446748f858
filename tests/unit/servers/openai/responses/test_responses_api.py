import asyncio
import json

import pytest

from rayinfer.errors import RequestFailed, ResourceNotFound
from rayinfer.servers.openai.responses.store import ResponseStore, StoredResponse

PATH = "/v1/responses"
BODY = {"model": "org/tiny", "input": "hello"}


def events_of(response) -> list[dict]:
    events = []
    for part in response.text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def completed(client, response_id: str) -> dict:
    for _ in range(200):
        body = (await client.get(f"{PATH}/{response_id}")).json()
        if body["status"] not in ("queued", "in_progress"):
            return body
        await asyncio.sleep(0.01)
    raise AssertionError("the response did not end")


async def test_a_response_has_its_output_and_usage(client, generator):
    generator.num_cached_tokens = 2
    body = (await client.post(PATH, json=BODY | {"max_output_tokens": 9, "metadata": {"a": "b"}})).json()
    (item,) = body["output"]
    assert (item["type"], item["status"], item["content"][0]["text"]) == ("message", "completed", "Hello there!")
    assert (body["object"], body["status"], body["metadata"]) == ("response", "completed", {"a": "b"})
    usage = body["usage"]
    assert usage["input_tokens"] == len(generator.requests[0].prompt_token_ids)
    assert (usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (3, 2)
    assert generator.requests[0].sampling_params.max_tokens == 9
    assert (await client.get(f"{PATH}/{body['id']}")).json() == body


async def test_a_stream_has_all_events_in_order(client):
    events = events_of(await client.post(PATH, json=BODY | {"stream": True}))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert events[2]["item"]["content"] == []
    assert events[7]["text"] == "Hello there!"
    assert len({event["item_id"] for event in events[3:9]}) == 1
    final = events[-1]["response"]
    assert final["output"] == [events[9]["item"]]
    assert (await client.get(f"{PATH}/{final['id']}")).json() == final


async def test_log_probabilities_come_with_the_text_if_included(client):
    body = BODY | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = (await client.post(PATH, json=body)).json()
    entries = response["output"][0]["content"][0]["logprobs"]
    assert response["top_logprobs"] == 2
    assert len(entries) == response["usage"]["output_tokens"] == 3
    assert all(len(entry["top_logprobs"]) >= 2 and bytes(entry["bytes"]) for entry in entries)
    events = events_of(await client.post(PATH, json=body | {"stream": True}))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == entries
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == entries
    plain = (await client.post(PATH, json=BODY)).json()
    assert plain["output"][0]["content"][0]["logprobs"] == []


async def test_an_answer_cut_by_length_is_incomplete(client, generator):
    generator.finish_reason = "length"
    body = (await client.post(PATH, json=BODY)).json()
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert events_of(await client.post(PATH, json=BODY | {"stream": True}))[-1]["type"] == "response.incomplete"


async def test_a_conversation_goes_on_from_the_previous_response(client, generator, models):
    first = (await client.post(PATH, json=BODY | {"instructions": "Be brief."})).json()
    second = await client.post(PATH, json=BODY | {"input": "and then", "previous_response_id": first["id"]})
    assert second.status_code == 200
    texts = [
        models["org/tiny"].tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        for request in generator.requests
    ]
    assert "Be brief." in texts[0]
    assert "Be brief." not in texts[1]  # instructions are of one response
    assert texts[1].index("hello") < texts[1].index("Hello there!") < texts[1].index("and then")
    missing = await client.post(PATH, json=BODY | {"previous_response_id": "resp_none"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_response_that_is_not_stored_or_deleted_is_not_found(client):
    response = (await client.post(PATH, json=BODY | {"store": False})).json()
    assert (await client.get(f"{PATH}/{response['id']}")).status_code == 404
    response = (await client.post(PATH, json=BODY)).json()
    assert (await client.delete(f"{PATH}/{response['id']}")).json()["deleted"] is True
    assert (await client.get(f"{PATH}/{response['id']}")).status_code == 404
    assert (await client.delete(f"{PATH}/{response['id']}")).status_code == 404


async def test_input_items_are_listed_in_pages(client):
    items = [
        {"role": "user", "content": "one"},
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
    ]
    path = f"{PATH}/{(await client.post(PATH, json=BODY | {'input': items})).json()['id']}/input_items"
    page = (await client.get(path, params={"limit": 3})).json()
    assert [item["type"] for item in page["data"]] == ["message", "function_call_output", "function_call"]
    assert page["has_more"]
    rest = (await client.get(path, params={"after": page["last_id"]})).json()
    assert [item["content"] for item in rest["data"]] == ["one"]
    assert (await client.get(path, params={"limit": 0})).status_code == 400


async def test_a_background_response_is_fetched_later(client, generator):
    generator.blocks_after = 1
    response = (await client.post(PATH, json=BODY | {"background": True})).json()
    assert (response["status"], response["output"]) == ("queued", [])
    generator.release.set()
    body = await completed(client, response["id"])
    assert (body["status"], body["output"][0]["content"][0]["text"]) == ("completed", "Hello there!")
    generator.refusal = RequestFailed("inner details")
    response = (await client.post(PATH, json=BODY | {"background": True})).json()
    body = await completed(client, response["id"])
    assert (body["status"], "inner details" in str(body)) == ("failed", False)


async def test_a_cancelled_background_response_ends_its_generation(client, generator):
    generator.blocks_after = 1
    response = (await client.post(PATH, json=BODY | {"background": True})).json()
    await generator.has_blocked.wait()
    cancelled = (await client.post(f"{PATH}/{response['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    await asyncio.wait_for(generator.has_aborted.wait(), 5)
    assert (await client.get(f"{PATH}/{response['id']}")).json()["status"] == "cancelled"
    generator.release.set()
    whole = (await client.post(PATH, json=BODY)).json()
    assert (await client.post(f"{PATH}/{whole['id']}/cancel")).status_code == 400


async def test_truncation_drops_the_oldest_messages(client, generator, models):
    long = [{"role": "user", "content": f"number {position} " + "word " * 40} for position in range(12)]
    refused = await client.post(PATH, json=BODY | {"input": long})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    kept = await client.post(PATH, json=BODY | {"input": long, "truncation": "auto", "instructions": "Be brief."})
    assert kept.status_code == 200
    text = models["org/tiny"].tokenizer.decode(generator.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert "number 11" in text
    assert "Be brief." in text
    assert "number 0" not in text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0.content.0.type",
        ),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0.type"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"include": ["nonsense"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "stream": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3.0}, "temperature"),
        ({"text": {"format": {"type": "nonsense"}}}, "text.format"),
    ],
)
async def test_refusals_name_the_field(client, body, param):
    response = await client.post(PATH, json=BODY | body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_failure_after_the_first_output_is_the_last_event(client, generator):
    generator.failure = RequestFailed("inner details")
    last = events_of(await client.post(PATH, json=BODY | {"stream": True}))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "inner details" not in str(last)


def stored(name: str, created_s: float, status: str = "completed") -> StoredResponse:
    return StoredResponse(body={"id": name, "created_at": created_s, "status": status}, input=[], messages=[])


def test_the_store_keeps_owners_apart_and_survives_a_restart(tmp_path):
    ResponseStore(tmp_path).save("a", stored("r1", 2e10))
    store = ResponseStore(tmp_path)
    assert store.find("a", "r1").body["id"] == "r1"
    with pytest.raises(ResourceNotFound):
        store.find("b", "r1")
    store.save("b", stored("r1", 2e10, "failed"))
    assert store.find("a", "r1").body["status"] == "completed"


def test_the_store_keeps_a_limited_number_for_a_limited_time():
    store = ResponseStore(max_per_owner=2, max_age_s=100.0)
    for name, created_s in (("r1", 2e10), ("r2", 2e10 + 1), ("r3", 2e10 + 2), ("old", 1.0)):
        store.save("a", stored(name, created_s))
    for name in ("r1", "old"):
        with pytest.raises(ResourceNotFound):
            store.find("a", name)
    assert store.find("a", "r3").body["id"] == "r3"
