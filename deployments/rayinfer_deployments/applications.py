"""Wires the Serve applications: which deployments there are, what each one gets, and what Serve has to know of them."""

import re
from collections.abc import Callable

from ray import serve
from ray.serve import Application

from rayinfer_deployments.addressed_request_router import addressed_routing
from rayinfer_deployments.app_args import LLMAppArgs, ModelArgs
from rayinfer_deployments.engine_replica import EngineReplica, EngineResources
from rayinfer_deployments.router import ListenAddress, Router, RouterModel

REPLICA_NUM_CPUS = 0.05  # it only watches
HEALTH_CHECK_PERIOD_S = 0.5  # Serve acts on the third failure, or at once when the process is gone
HEALTH_CHECK_TIMEOUT_S = 30.0  # a busy machine answers late
MANY = 100_000  # no limit of Serve's: the router's own admission counts
MAX_STARTS = 2  # a model that cannot be loaded fails within seconds, one that met an accident gets a second chance
CLEAN_UP_S = 10.0  # what a replica may take beyond its engine's grace

MakeEngines = Callable[[int, ModelArgs, int], Application]  # from a model's number and settings, and the engines in all


def build_llm_app(args: LLMAppArgs, make_engines: MakeEngines | None = None) -> Application:
    """Serve one or more models behind one address; builds the graph only, loads nothing.

    Engines of another make announce themselves as `EngineReplica` does.
    """
    num_engines, make_engines = sum(model.num_replicas for model in args.models), make_engines or _engine_deployment
    models = [
        RouterModel(name=model.served_name, source=model.model, engines=make_engines(index, model, num_engines))
        for index, model in enumerate(args.models)
    ]
    longest_drain_s = max(model.drain_timeout_s for model in args.models)
    return (
        serve.deployment(Router)
        .options(
            name="router",
            num_replicas=1,
            ray_actor_options={"num_cpus": args.router_num_cpus},
            max_ongoing_requests=MANY,
            health_check_period_s=HEALTH_CHECK_PERIOD_S,
            health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
            graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=longest_drain_s + CLEAN_UP_S,
            max_constructor_retry_count=MAX_STARTS,
            user_config=args.limits.model_dump(mode="json"),
        )
        .bind(
            models,
            max_body_bytes=args.max_body_bytes,
            request_timeout_s=args.request_timeout_s,
            trace_requests=args.trace_requests,
            enable_engine_control=args.enable_engine_control,
            trust_tenant_header=args.trust_tenant_header,
            listen_on=None if args.listen_port is None else ListenAddress(host=args.listen_host, port=args.listen_port),
            drain_timeout_s=longest_drain_s,
        )
    )


def _engine_deployment(index: int, model: ModelArgs, num_engines: int) -> Application:
    gpus = {"GPU": model.num_gpus} if model.num_gpus else {}
    return (
        serve.deployment(EngineReplica)
        .options(
            name=f"engine-{index}-{re.sub(r'[^A-Za-z0-9_.-]', '-', model.served_name)}",
            num_replicas=model.num_replicas,
            ray_actor_options={"num_cpus": REPLICA_NUM_CPUS},
            # One bundle for both processes: the engine always starts beside the replica that owns it.
            placement_group_bundles=[{"CPU": REPLICA_NUM_CPUS + model.num_cpus, **gpus}],
            placement_group_strategy="STRICT_PACK",
            max_ongoing_requests=MANY,
            health_check_period_s=HEALTH_CHECK_PERIOD_S,
            health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
            graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=model.drain_timeout_s + CLEAN_UP_S,
            max_constructor_retry_count=MAX_STARTS,
            request_router_config=addressed_routing(),
        )
        .bind(
            model.engine_config(),
            num_engines=num_engines,
            resources=EngineResources(num_cpus=model.num_cpus, num_gpus=model.num_gpus),
            drain_timeout_s=model.drain_timeout_s,
        )
    )
