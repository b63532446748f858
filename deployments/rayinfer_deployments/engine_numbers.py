"""How many engines a model is told to have while its service runs."""

from rayinfer_deployments.app_args import LLMAppArgs, ModelArgs
from rayinfer_deployments.applications import ROUTER, engine_deployment_name


def scaled(model: ModelArgs, original: ModelArgs, num_engines: int | None, num_now: int) -> ModelArgs:
    """Settle how many engines a model has; None restores what was asked for at the start."""
    if num_engines is None:
        settled = {"num_replicas": original.num_replicas, "autoscaling": original.autoscaling}
        return beginning_with(model.model_copy(update=settled), num_now)
    if model.autoscaling is None:
        return model.model_copy(update={"num_replicas": num_engines})
    bounds = {"min_replicas": num_engines, "max_replicas": num_engines, "initial_replicas": num_engines}
    return model.model_copy(update={"autoscaling": model.autoscaling.model_copy(update=bounds)})


def beginning_with(model: ModelArgs, num_now: int) -> ModelArgs:
    """Have Serve begin with the engines that there are: where the settings change it forgets how many that were."""
    if model.autoscaling is None:
        return model
    initial = max(1, model.autoscaling.bounded(num_now))
    autoscaling = model.autoscaling.model_copy(update={"initial_replicas": initial})
    return model.model_copy(update={"autoscaling": autoscaling})


def num_wanted(args: LLMAppArgs, deployment: str) -> int | str | None:
    """Say how many replicas a deployment should have; as text where there are bounds only."""
    if deployment == ROUTER:
        return args.num_routers
    for index, model in enumerate(args.models):
        if deployment == engine_deployment_name(index, model):
            bounds = model.autoscaling
            return model.num_replicas if bounds is None else f"{bounds.min_replicas} to {bounds.max_replicas}"
    return None


def is_number_right(model: ModelArgs, num_engines: int) -> bool:
    """Whether a model may have so many engines now."""
    if model.autoscaling is None:
        return num_engines == model.num_replicas
    return model.autoscaling.min_replicas <= num_engines <= model.autoscaling.max_replicas
