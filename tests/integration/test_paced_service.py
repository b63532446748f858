"""A real router in front of an engine without a model, as `rayinfer bench router` measures it."""

import httpx
from ray import serve

from rayinfer.benchmark.control_plane.overhead.paced_engine import paced_description, printable_token_ids
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import build_app_over
from rayinfer_deployments.overhead.paced_replica import Pace, paced_engines
from support.services.polling import wait_until
from support.services.service_client import ServiceClient

NUM_TOKENS = 8


def test_the_router_streams_what_an_engine_without_a_model_says(cluster, tiny_models):
    folder = tiny_models["tiny"]
    tokenizer = Tokenizer.from_folder(folder)
    token_ids = printable_token_ids(tokenizer)
    description = paced_description("paced", tokenizer)
    pace = Pace(description=description, token_ids=token_ids, interval_s=0.005, max_running=8)
    args = llm_app_args({"models": [{"name": "paced", "model": str(folder)}]})
    try:
        serve.run(build_app_over(paced_engines(pace), args), name="paced", route_prefix="/paced")
        with httpx.Client(base_url=f"{cluster}/paced", timeout=60, trust_env=False) as http:
            wait_until(ServiceClient(http).is_ready)
            body = {"model": "paced", "prompt": [5], "max_tokens": NUM_TOKENS}
            answer = http.post("/v1/completions", json=body).raise_for_status().json()
    finally:
        serve.delete("paced")
    assert answer["usage"]["completion_tokens"] == NUM_TOKENS
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["text"] == "".join(tokenizer.decode([token_id]) for token_id in token_ids[:NUM_TOKENS])
