import json

import openai
import pytest
import ray
from ray.util import list_named_actors

from rayinfer_deployments.router.batch_owner_actor import ACTOR_PREFIX
from support.services.polling import wait_until
from support.services.service_client import ServiceClient

NUM_ROWS = 24


@pytest.fixture
def client(service: ServiceClient) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.base_url}/v1", api_key="none", _strict_response_validation=True)


def test_a_batch_outlives_its_owner_and_gives_what_single_requests_give(service: ServiceClient, client: openai.OpenAI):
    fields = {"max_tokens": 16, "temperature": 0.8, "ignore_eos": True}
    rows = [
        {
            "custom_id": f"row-{index}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "tiny", "prompt": f"Row {index}", "seed": index, **fields},
        }
        for index in range(NUM_ROWS)
    ]
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    file = client.files.create(file=("rows.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    (owner,) = [actor for actor in list_named_actors(all_namespaces=True) if actor["name"] == f"{ACTOR_PREFIX}service"]
    ray.kill(ray.get_actor(**owner), no_restart=False)
    wait_until(lambda: _status(client, batch.id) == "completed")
    batch = client.batches.retrieve(batch.id)
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (NUM_ROWS, 0)
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id or "").text.splitlines()]
    assert [line["custom_id"] for line in lines] == [f"row-{index}" for index in range(NUM_ROWS)]
    line = lines[5]["response"]["body"]["choices"][0]["text"]
    assert line == service.text_of(prompt="Row 5", seed=5, **fields)


def test_an_unknown_batch_is_not_found(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_unknown")


def _status(client: openai.OpenAI, batch_id: str) -> str:
    try:
        return client.batches.retrieve(batch_id).status
    except openai.InternalServerError:  # while the owner comes back
        return "away"
