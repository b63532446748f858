"""A running service gets other weights: no request fails, and what was read with the old ones is not taken for new."""

import asyncio
import shutil

import pytest

from rayinfer.errors import RayinferError
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.operations.service_operations import ServiceOperations
from support.services.polling import wait_until
from support.services.service_load import Load, engine_names, router_pids

pytestmark = pytest.mark.faults  # replicas are replaced one by one, each takes its time

QUESTION = {"prompt": "Once upon a time there was a very small model " * 4, "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def reloadable(deploy, tiny_models):
    model = {"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 2048, "dtype": "float32"}
    small = {"num_cpus": 0.1, "num_threads": 1, "drain_timeout_s": 5.0}
    with deploy("reloadable", [model | {"num_replicas": 2}]) as service:
        wait_until(lambda: len(engine_names(service)) == 2)
        args = llm_app_args({"models": [small | model | {"num_replicas": 2}]})
        yield service, ServiceOperations("reloadable", args, route_prefix="/reloadable")


def text_from(service, **more):
    return service.http.post("/v1/completions", json=QUESTION | more).json()["choices"][0]["text"]


def last_trace(service):
    answer = service.http.post("/v1/completions", json=QUESTION).json()
    events = service.http.get(f"/v1/requests/{answer['id']}/trace").json()
    return answer, events


def test_weights_change_engine_by_engine_and_no_request_fails(reloadable, tiny_models):
    service, operations = reloadable
    old_text, before = text_from(service), (engine_names(service), router_pids("reloadable"))
    with Load(service.base_url) as load:
        done = asyncio.run(operations.reload(str(tiny_models["other"])))
    assert done == {"model": "tiny", "source": str(tiny_models["other"]), "weights_version": 1}
    assert load.failures == []
    assert not engine_names(service) & before[0]
    assert router_pids("reloadable") == before[1]
    new_text = text_from(service)
    assert new_text != old_text
    answer, trace = last_trace(service)
    assert "'weights_version': 1" in str(trace)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0  # routers and engines hash alike again


def test_weights_that_do_not_fit_change_nothing(reloadable, tiny_models, tmp_path):
    service, operations = reloadable
    text, engines = text_from(service), engine_names(service)
    stranger = shutil.copytree(tiny_models["tiny"], tmp_path / "stranger")
    (stranger / "tokenizer.json").write_text((stranger / "tokenizer.json").read_text() + " ")
    with pytest.raises(RayinferError, match="is not the tokenizer of 'tiny'"):
        asyncio.run(operations.reload(str(stranger)))
    with pytest.raises(RayinferError, match="unknown"):
        asyncio.run(operations.reload(str(tiny_models["tiny"]), model="unknown"))
    assert (text_from(service), engine_names(service)) == (text, engines)


def test_weights_that_cannot_be_loaded_leave_the_old_ones_where_they_are(reloadable, tiny_models, tmp_path):
    service, operations = reloadable
    text = text_from(service)
    broken = shutil.copytree(tiny_models["tiny"], tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights at all")
    with Load(service.base_url) as load, pytest.raises(RayinferError, match="the old weights are kept"):
        asyncio.run(operations.reload(str(broken)))
    assert load.failures == []
    wait_until(lambda: len(engine_names(service)) == 2)
    assert text_from(service) == text


def test_a_model_without_engines_gets_one_with_the_other_weights_or_keeps_its_own(deploy, tiny_models, tmp_path):
    scaling = {"min_replicas": 0, "max_replicas": 1, "idle_timeout_s": 5}
    model = {"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 2048, "dtype": "float32"}
    models = [model | {"num_cpus": 0.1, "num_threads": 1, "drain_timeout_s": 5.0, "autoscaling": scaling}]
    broken = shutil.copytree(tiny_models["tiny"], tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights at all")
    with deploy("dormant", models) as service:
        operations = ServiceOperations("dormant", llm_app_args({"models": models}), route_prefix="/dormant")
        text = text_from(service)
        wait_until(lambda: not engine_names(service), 120)
        with pytest.raises(RayinferError, match="the old weights are kept"):
            asyncio.run(operations.reload(str(broken)))
        assert text_from(service) == text
        wait_until(lambda: not engine_names(service), 120)
        assert asyncio.run(operations.reload(str(tiny_models["other"])))["weights_version"] == 1
        assert text_from(service) != text
