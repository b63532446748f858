"""A service is changed under load: its clients notice nothing, and only those processes go that have to."""

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
from ray import serve

from rayinfer.errors import ConfigError, RayinferError
from rayinfer_deployments.app_args import llm_app_args
from rayinfer_deployments.applications import build_llm_app
from rayinfer_deployments.engine.engine_replica import SERVE_NAMESPACE
from rayinfer_deployments.operations.service_operations import ServiceOperations
from support.services.free_ports import free_port
from support.services.polling import wait_until
from support.services.service_load import NUM_CLIENTS, Load, engine_names, router_pids

SMALL = {"num_cpus": 0.1, "num_threads": 1, "drain_timeout_s": 5.0}


@pytest.fixture
def model(tiny_models):
    return SMALL | {"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 4096, "dtype": "float32"}


@pytest.mark.faults
@pytest.mark.parametrize("entry", ["serve's proxy", "the router's own port"])
def test_a_redeployment_replaces_routers_and_engines_and_no_request_fails(deploy, cluster, model, entry):
    name = "rolling-own" if "own" in entry else "rolling"
    listen = {"listen_port": free_port()} if "own" in entry else {}
    url = f"http://127.0.0.1:{listen['listen_port']}" if listen else f"{cluster}/{name}"
    with deploy(name, [model], **listen) as service:
        before = engine_names(service), router_pids(name)
        changed = {"models": [model | {"max_num_seqs": 32}], "max_body_bytes": 2**20, **listen}
        with Load(url) as load:
            serve.run(build_llm_app(llm_app_args(changed)), name=name, route_prefix=f"/{name}")
            wait_until(lambda: not before[0] & engine_names(service) and len(engine_names(service)) == 1)
            wait_until(lambda: not before[1] & router_pids(name))
        assert load.failures == []
        assert len(load.texts) == 1
        assert load.num_asked > 2 * NUM_CLIENTS


@pytest.fixture(scope="module")
def operated(deploy, tiny_models):
    """A model with two engines and one with one behind two routers, and an operator's hands on them."""
    models = [
        SMALL | {"name": name, "model": str(tiny_models[name]), "num_kv_blocks": 2048, "num_replicas": count}
        for name, count in (("tiny", 2), ("other", 1))
    ]
    args = llm_app_args({"models": models, "num_routers": 2})
    with deploy("operated", models, num_routers=2) as service:
        wait_until(lambda: len(engine_names(service, "tiny")) == 2)
        yield service, ServiceOperations("operated", args, route_prefix="/operated")


@pytest.mark.faults  # for its time
def test_other_limits_reach_every_router_with_streams_open_and_replace_no_process(operated):
    service, operations = operated
    before = engine_names(service), router_pids("operated")
    assert len(before[1]) == 2
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with service.http.stream("POST", "/v1/completions", json=body, timeout=120) as response:
        lines = response.iter_lines()
        next(lines)
        asked_s = time.monotonic()
        changed = asyncio.run(operations.change_limits({"max_waiting_requests": 3, "ageing_s": 1.5}))
        assert time.monotonic() - asked_s < 20.0  # ten times what it takes at most when the machine is at ease
        assert (changed["max_waiting_requests"], changed["ageing_s"]) == (3, 1.5)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert (engine_names(service), router_pids("operated")) == before
    with pytest.raises(ConfigError, match="ageing_s"):
        asyncio.run(operations.change_limits({"ageing_s": -1}))
    assert asyncio.run(operations.limits())["ageing_s"] == 1.5


def test_a_canary_gets_its_share_is_promoted_and_rolled_back(operated):
    service, operations = operated
    texts = {name: service.text_of(model=name) for name in ("tiny", "other")}
    before = asyncio.run(operations.limits()) | {"max_waiting_requests": 200}

    def answers(num, **canary):
        limits = before | ({"canaries": {"tiny": {"model": "other"} | canary}} if canary else {})
        asyncio.run(operations.change_limits(limits))
        shares = {
            state["share"] for router in asyncio.run(operations.status())["routers"] for state in router["canaries"]
        }
        assert shares == ({canary["share"]} if canary else set())
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: service.text_of(model="tiny"), range(num)))
        assert set(found) <= set(texts.values())
        return found.count(texts["other"])

    assert answers(200, share=0.2, max_ttft_ratio=None) == pytest.approx(40, abs=25)
    assert answers(40, share=1.0, max_ttft_ratio=None) == 40
    assert answers(40) == 0


def test_every_scrape_has_the_tokens_of_all_routers_once(operated):
    service, _ = operated
    before = service.metric("vllm:generation_tokens_total")
    for _ in range(8):
        service.text_of(model="tiny", prompt="Once", max_tokens=5, ignore_eos=True)
    wait_until(lambda: service.metric("vllm:generation_tokens_total") == before + 40)
    assert len(service.label_values("vllm:generation_tokens_total", "router")) == 2
    assert service.label_values("rayinfer_router_info", "router") == service.label_values(
        "vllm:generation_tokens_total", "router"
    )
    engines = service.label_values("vllm:kv_cache_usage_perc", "engine")
    assert service.metric("vllm:cache_config_info") == len(engines) == 3
    steps = service.metric("vllm:iteration_tokens_total_count")
    assert 0 < steps <= service.metric("rayinfer_steps_total")


def test_pause_and_resume_act_on_all_engines(operated):
    service, operations = operated
    assert asyncio.run(operations.control("pause")) == ["tiny", "other"]
    wait_until(lambda: reasons_not_ready(service) == {"tiny": "paused", "other": "paused"})
    assert asyncio.run(operations.control("resume", "tiny")) == ["tiny"]
    wait_until(lambda: reasons_not_ready(service) == {"other": "paused"})
    assert service.complete().status_code == 200
    with pytest.raises(RayinferError, match="unknown"):
        asyncio.run(operations.control("pause", "unknown"))
    asyncio.run(operations.control("sleep", "tiny", level=1))
    with pytest.raises(RayinferError, match="asleep"):
        asyncio.run(operations.control("pause"))
    asyncio.run(operations.control("wake", "tiny"))
    asyncio.run(operations.control("resume", "other"))
    wait_until(lambda: reasons_not_ready(service) == {})


def reasons_not_ready(service):
    """Return the answer of /ready; routers alternate, and the one that acted knows the change first."""
    reasons = [service.http.get("/ready").json().get("reasons", {}) for _ in range(4)]
    return reasons[0] if all(other == reasons[0] for other in reasons) else None


def test_a_model_gets_as_many_engines_as_an_operator_says_and_no_other_process_is_replaced(operated):
    service, operations = operated
    # The first change by another's hand takes the service's logging along, for which Serve halts every replica briefly.
    asyncio.run(operations.change_limits({"max_waiting_requests": 200}))
    time.sleep(3)
    wait_until(lambda: (len(engine_names(service, "tiny")), len(engine_names(service, "other"))) == (2, 1))
    routers, before, other = router_pids("operated"), engine_names(service, "tiny"), engine_names(service, "other")
    with Load(service.base_url) as load:
        (left,) = asyncio.run(operations.scale(1, "tiny"))["tiny"]
        assert left in before
        now = asyncio.run(operations.scale(None))
    assert load.failures == []
    assert len(load.texts) == 1
    assert (len(now["tiny"]), set(now["other"])) == (2, other)
    assert left in now["tiny"]
    assert router_pids("operated") == routers
    with pytest.raises(RayinferError, match="no model 'unknown'"):
        asyncio.run(operations.scale(2, "unknown"))


@pytest.mark.faults
def test_an_engine_is_taken_out_with_and_without_another_in_its_place(operated):
    service, operations = operated
    first, second = sorted(engine_names(service, "tiny"))
    (other,) = engine_names(service, "other")
    with Load(service.base_url) as load:
        done = asyncio.run(operations.drain(first.removeprefix("rayinfer-engine-")))
        assert done["left"] == [first]
        assert len(set(done["engines"]) - {first, second, other}) == 1
        done = asyncio.run(operations.drain(second, shrink=True))
        (left,) = set(done["engines"]) - {other}
        assert left not in (first, second)
    assert load.failures == []
    assert len(load.texts) == 1
    for engine in (first, second):
        wait_until(lambda engine=engine: is_gone(engine))
    report = asyncio.run(operations.status())
    assert {deployment["name"]: deployment["wanted"] for deployment in report["deployments"]} == {
        "router": 2,
        "engine-0-tiny": 1,
        "engine-1-other": 1,
    }
    assert len(report["routers"]) == 2
    with pytest.raises(RayinferError, match="is the only engine of model 'tiny'"):
        asyncio.run(operations.drain(left, shrink=True))
    with pytest.raises(RayinferError, match="no engine matches 'unknown'"):
        asyncio.run(operations.drain("unknown"))


def is_gone(engine):
    with contextlib.suppress(ValueError):
        ray.get_actor(engine, namespace=SERVE_NAMESPACE)
        return False
    return True


def test_the_status_of_a_service_that_is_not_deployed(cluster, model):
    operations = ServiceOperations("nowhere", llm_app_args({"models": [model]}))
    status = asyncio.run(operations.status())
    assert (status["state"], status["deployments"], status["routers"]) == ("NOT_STARTED", [], [])
    with pytest.raises(RayinferError, match="no router answers"):
        asyncio.run(operations.drain())
