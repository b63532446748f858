"""Engines of several processes behind a service: they answer as one process does."""

import pytest
import ray

from rayinfer_deployments.cluster.process_tree import descendants
from rayinfer_deployments.operations.process_listing import identify, read_actors

REQUESTS = [
    {"prompt": "Once upon a time", "max_tokens": 48},
    {"prompt": "the quick brown fox " * 40, "max_tokens": 24},
    {"prompt": "a", "max_tokens": 32, "temperature": 0.9, "seed": 7, "presence_penalty": 0.5},
]


@pytest.mark.faults  # half a minute
def test_ranks_side_by_side_in_stages_answer_as_one_process_does(service, deploy, tiny_models):
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    model = {"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 1024, "num_cpus": 0.05}
    with deploy("parallel", [model | sizes]) as parallel:
        for request in REQUESTS:
            assert parallel.text_of(**request) == service.text_of(**request)
        for stage in ("0", "1"):
            assert 0 < parallel.metric("rayinfer_pipeline_stage_idle_share", stage=stage) < 1
        found = identify(read_actors(ray.get_runtime_context().gcs_address), "parallel", {})
        ranks = [process for process in found if process.role == "engine"]
        assert [process.rank for process in ranks] == [0, 1, 2, 3]
        assert len({process.group for process in ranks}) == 1
        assert len({process.pid for process in ranks}) == 4
        assert not any(descendants(process.pid) for process in ranks)  # they do it all themselves
