"""Replica counts of a running service's models."""

from rayinfer_deployments.app_args import LLMAppArgs, ModelArgs
from rayinfer_deployments.applications import ROUTER, engine_deployment_name


def scaled(model: ModelArgs, original: ModelArgs, num_engines: int | None, num_now: int) -> ModelArgs:
    """Set a model's number of engines; None restores the settings from the start of the service."""
    if num_engines is None:
        settled = {"num_replicas": original.num_replicas, "autoscaling": original.autoscaling}
        return with_initial_replicas(model.model_copy(update=settled), num_now)
    if model.autoscaling is None:
        return model.model_copy(update={"num_replicas": num_engines})
    bounds = {"min_replicas": num_engines, "max_replicas": num_engines, "initial_replicas": num_engines}
    return model.model_copy(update={"autoscaling": model.autoscaling.model_copy(update=bounds)})


def with_initial_replicas(model: ModelArgs, num_now: int) -> ModelArgs:
    """Set Serve's initial replicas to the present number: it forgets that number where the settings change."""
    if model.autoscaling is None:
        return model
    initial = max(1, model.autoscaling.bounded(num_now))
    autoscaling = model.autoscaling.model_copy(update={"initial_replicas": initial})
    return model.model_copy(update={"autoscaling": autoscaling})


def num_wanted(args: LLMAppArgs, deployment: str) -> int | str | None:
    """Return the number of replicas that a deployment should have; as text where there are bounds only."""
    if deployment == ROUTER:
        return "one a node" if args.router_on_every_node else args.num_routers
    for index, model in enumerate(args.models):
        if deployment == engine_deployment_name(index, model):
            bounds = model.autoscaling
            return model.num_replicas if bounds is None else f"{bounds.min_replicas} to {bounds.max_replicas}"
    return None


def is_allowed_count(model: ModelArgs, num_engines: int) -> bool:
    """Return whether the settings allow a model this number of engines."""
    if model.autoscaling is None:
        return num_engines == model.num_replicas
    return model.autoscaling.min_replicas <= num_engines <= model.autoscaling.max_replicas
