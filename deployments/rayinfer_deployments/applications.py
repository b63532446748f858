"""Construction of the Serve applications: their deployments, and the arguments and options of each."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from ray import serve
from ray.serve import Application

from rayinfer import __version__
from rayinfer.traces.generation_span import check_extra_is_installed
from rayinfer_deployments.app_args import REPLICA_NUM_CPUS, LLMAppArgs, ModelArgs, with_environment_keys
from rayinfer_deployments.discovery.addressed_request_router import addressed_routing
from rayinfer_deployments.discovery.autoscaling_policy import serve_autoscaling
from rayinfer_deployments.discovery.router_per_node import router_on_every_node
from rayinfer_deployments.engine.engine_ranks import EngineResources
from rayinfer_deployments.engine.engine_replica import EngineReplica
from rayinfer_deployments.router.adapters.adapter_settings import FIELDS as ADAPTER_FIELDS
from rayinfer_deployments.router.routed_models import RouterModel, RouterScaling
from rayinfer_deployments.router.router import ListenAddress, Router

ROUTER = "router"
LEAST_NUM_CPUS = 0.001  # no bundle may be empty
HEALTH_CHECK_PERIOD_S = 0.5  # Serve acts on the third failure, or at once when the process is gone
HEALTH_CHECK_TIMEOUT_S = 30.0  # a busy machine answers late
UNLIMITED_ONGOING_REQUESTS = 100_000  # no limit of Serve's: the router's own admission counts
MAX_STARTS = 2  # a model that cannot be loaded fails within seconds, one that met an accident gets a second chance
CLEAN_UP_S = 10.0  # what a replica may take beyond its engine's grace

# From a model's number and settings, and the engines' processes in all.
MakeEngines = Callable[[int, ModelArgs, int], Application]


def build_llm_app(args: LLMAppArgs) -> Application:
    """Serve one or more models behind one address; builds the graph only, loads nothing.

    `serve deploy` calls it with the arguments of its file, and takes no function of more than one parameter.
    """
    return build_app_over(_engine_deployment, args)


def build_app_over(make_engines: MakeEngines, args: LLMAppArgs) -> Application:
    """Serve models on engines of any kind that publish their addresses as `EngineReplica` does."""
    args = with_environment_keys(args)
    if args.otlp_traces_endpoint is not None:
        check_extra_is_installed()
    num_processes = sum(model.most_replicas * model.num_ranks for model in args.models)
    models = [
        RouterModel(
            name=model.served_name,
            source=model.tokenizer_source,
            engines=make_engines(index, model, num_processes),
            scaling=_router_scaling(model),
            tool_format=model.tool_format,
            roles=model.roles,
            adapters=model.adapter_folders(model.served_name, args.lora_roots),
        )
        for index, model in enumerate(args.models)
    ]
    longest_drain_s = max(model.drain_timeout_s for model in args.models)
    return (
        serve.deployment(Router)
        .options(
            name=ROUTER,
            **_number_of_routers(args),
            version=_version(_router_settings(args)),
            _internal=True,
            ray_actor_options={"num_cpus": args.router_num_cpus},
            max_ongoing_requests=UNLIMITED_ONGOING_REQUESTS,
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
            otlp_traces_endpoint=args.otlp_traces_endpoint,
            enable_engine_control=args.enable_engine_control,
            trust_tenant_header=args.trust_tenant_header,
            request_limits=args.request_limits,
            trust_request_chat_template=args.trust_request_chat_template,
            with_examples=args.with_examples,
            listen_on=_listen_address(args, args.listen_port),
            grpc_on=_listen_address(args, args.grpc_port),
            connection_limits=args.connection_limits(),
            access=args.access_settings(),
            prediction_cache=args.prediction_cache_settings(),
            batches=args.batch_settings(),
            drain_timeout_s=longest_drain_s,
        )
    )


def engine_deployment_name(index: int, model: ModelArgs) -> str:
    """Name the deployment of a model's engines, given the model's place in the application's list."""
    return f"engine-{index}-{re.sub(r'[^A-Za-z0-9_.-]', '-', model.served_name)}"


def _number_of_routers(args: LLMAppArgs) -> dict[str, Any]:
    """Return Serve's options for the number of routers."""
    if args.router_on_every_node:
        return router_on_every_node(args.router_num_cpus)
    return {
        "num_replicas": args.num_routers,
        "max_surge_percent": 100,
    }  # the next one serves before the last one leaves


def _listen_address(args: LLMAppArgs, port: int | None) -> ListenAddress | None:
    return None if port is None else ListenAddress(host=args.listen_host, port=port)


def _router_settings(args: LLMAppArgs) -> dict[str, Any]:
    """Collect the settings that a router is built from; the others can change while it runs, or are not its own."""
    settings = args.model_dump(mode="json", exclude={"models", "limits", "num_routers", "router_on_every_node"})
    models = [[model.served_name, model.tokenizer_source, model.drain_timeout_s] for model in args.models]
    # A router keeps the bound of its queue where others allow more engines, rather than give way to another router.
    scaling = [scaling and asdict(replace(scaling, max_replicas=1)) for scaling in map(_router_scaling, args.models)]
    roles = [model.roles and model.roles.model_dump() for model in args.models]
    adapters = [model.lora_settings() for model in args.models]
    optional: dict[str, list[Any]] = {"scaling": scaling, "roles": roles, "adapters": adapters}
    return settings | {"models": models} | {name: each for name, each in optional.items() if any(each)}


def _router_scaling(model: ModelArgs) -> RouterScaling | None:
    """Return the routers' settings of a model whose number of engines follows the load."""
    if model.autoscaling is None:
        return None
    return RouterScaling(
        ttft_objective_s=model.autoscaling.ttft_objective_s,
        cold_start_timeout_s=model.autoscaling.cold_start_timeout_s,
        max_replicas=model.autoscaling.max_replicas,
    )


def number_of_engines(model: ModelArgs) -> dict[str, Any]:
    """Return Serve's options for the number of replicas of an engine deployment."""
    if model.autoscaling is None:
        return {"num_replicas": model.num_replicas}
    return {"autoscaling_config": serve_autoscaling(model.autoscaling)}


def _version(settings: dict[str, Any]) -> str:
    """Compute the version of a deployment from the settings that its replicas are built from.

    Serve keeps the replicas of a deployment whose version has not changed, where it would otherwise replace all of them
    at every deployment. It offers the option to itself only; `serve deploy` makes a version of the whole configuration.
    """
    described = json.dumps([__version__, settings], sort_keys=True)
    return hashlib.blake2b(described.encode(), digest_size=8).hexdigest()


def _engine_deployment(index: int, model: ModelArgs, num_processes: int) -> Application:
    return (
        serve.deployment(EngineReplica)
        .options(
            name=engine_deployment_name(index, model),
            **number_of_engines(model),
            max_surge_percent=model.surge,
            version=_version(
                model.model_dump(mode="json", exclude={"num_replicas", "autoscaling", "surge_percent"} | ADAPTER_FIELDS)
            ),
            _internal=True,
            ray_actor_options={"num_cpus": REPLICA_NUM_CPUS},
            placement_group_bundles=_bundles(model),
            placement_group_strategy=model.placement_group_strategy,
            placement_group_bundle_label_selector=_labels(model),
            max_ongoing_requests=UNLIMITED_ONGOING_REQUESTS,
            health_check_period_s=HEALTH_CHECK_PERIOD_S,
            health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
            graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=model.drain_timeout_s + CLEAN_UP_S,
            max_constructor_retry_count=MAX_STARTS,
            request_router_config=addressed_routing(),
        )
        .bind(
            model.engine_config(),
            num_processes=num_processes,
            resources=EngineResources(
                num_ranks=model.num_ranks,
                num_cpus=model.num_cpus_per_rank,
                num_gpus=model.num_gpus,
                strategy=model.placement_group_strategy,
                ranks_per_bundle=model.ranks_per_bundle,
            ),
            drain_timeout_s=model.drain_timeout_s,
        )
    )


def _bundles(model: ModelArgs) -> list[dict[str, float]]:
    """Return a bundle for each rank, or each stage; the first has the replica too, on the node of its actors."""
    per_bundle = model.ranks_per_bundle
    gpus = {"GPU": per_bundle * model.num_gpus} if model.num_gpus else {}
    cpus = per_bundle * model.num_cpus_per_rank
    first = {"CPU": REPLICA_NUM_CPUS + cpus} | gpus | model.resources
    other = {"CPU": max(cpus, LEAST_NUM_CPUS)} | gpus
    return [first] + [other] * (model.num_ranks // per_bundle - 1)


def _labels(model: ModelArgs) -> list[dict[str, str]] | None:
    """Return the labels that the node of each bundle must have, None for any node."""
    if not model.node_labels:
        return None
    num_bundles = model.num_ranks // model.ranks_per_bundle
    return [dict(model.node_labels[index % len(model.node_labels)]) for index in range(num_bundles)]
