"""The HTTP processor of ray.data.llm against a running service, without code of ours between them."""

from dataclasses import replace

import httpx
import pytest

from rayinfer import LLM
from support.faults.cli_processes import serving

pytestmark = pytest.mark.jobs

ROWS = [{"id": f"r{n}", "prompt": f"Number {n} is the number after", "seed": n} for n in range(12)]
MODEL = "smollm2-135m"


def test_the_http_processor_of_ray_data_llm_gets_the_same_text(tmp_path):
    llm = LLM(MODEL, num_threads=1)
    defaults = llm.get_default_sampling_params()  # the model's own, which apply to the service, too
    params = [replace(defaults, max_tokens=8, temperature=0.8, seed=row["seed"]) for row in ROWS]
    outputs = llm.generate([row["prompt"] for row in ROWS], params, use_tqdm=False)
    expected = {row["id"]: output.outputs[0].text for row, output in zip(ROWS, outputs, strict=True)}
    llm.exit()
    with serving(MODEL, "--num-threads", 1, cache=tmp_path) as service:
        service.wait_for_line("ready")
        assert httpx.get(f"{service.url}/v1/models").status_code == 200
        assert texts_over_http(f"{service.url}/v1/completions") == expected


def texts_over_http(url):
    import ray
    from ray.data.llm import HttpRequestProcessorConfig, build_processor

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, configure_logging=False)
    try:
        processor = build_processor(
            HttpRequestProcessorConfig(url=url, batch_size=4, concurrency=1),
            preprocess=lambda row: {
                "id": row["id"],
                "payload": {
                    "model": MODEL,
                    "prompt": row["prompt"],
                    "seed": int(row["seed"]),
                    "max_tokens": 8,
                    "temperature": 0.8,
                },
            },
            postprocess=lambda row: {"id": row["id"], "text": row["http_response"]["choices"][0]["text"]},
        )
        return {row["id"]: row["text"] for row in processor(ray.data.from_items(ROWS)).take_all()}
    finally:
        ray.shutdown()
