"""CPUs and GPUs that Ray sets aside for engines, as far as the running cluster has them."""

import math

from rayinfer_deployments.app_args import REPLICA_NUM_CPUS, LLMAppArgs


def with_gpus_for_ranks(args: LLMAppArgs, num_gpus: float) -> LLMAppArgs:
    """Set a GPU aside for each rank of the engines that have several, as far as `num_gpus` reach for all of a model's.

    Models that set their own number are left as they are.
    """
    models = []
    for model in args.models:
        wanted = model.num_replicas * model.num_ranks
        if model.num_ranks > 1 and "num_gpus" not in model.model_fields_set and wanted <= num_gpus:
            num_gpus -= wanted
            model = model.model_copy(update={"num_gpus": 1.0})
        models.append(model)
    return args.model_copy(update={"models": models})


def with_cpus_that_fit(args: LLMAppArgs, num_cpus: float) -> LLMAppArgs:
    """Set less of a CPU aside for each engine where all of them, and one that replaces another, would not fit.

    Ray would never start the last ones. Engines share the cores whatever is set aside for them. Models that set their
    own number are left as they are.
    """
    engines = [model.fewest_replicas for model in args.models]
    engines[engines.index(max(engines))] += 1
    free = num_cpus - args.fewest_routers * args.router_num_cpus - REPLICA_NUM_CPUS * sum(engines)
    fixed = wanted = 0.0
    for model, count in zip(args.models, engines, strict=True):
        cpus = count * model.num_ranks * model.num_cpus_per_rank
        fixed, wanted = (fixed, wanted + cpus) if model.num_cpus is None else (fixed + cpus, wanted)
    if fixed + wanted <= free:
        return args
    share = max(0.0, free - fixed) / wanted if wanted else 0.0
    models = [
        model
        if model.num_cpus is not None
        else model.model_copy(update={"num_cpus": math.floor(model.num_cpus_per_rank * share * 1000) / 1000})
        for model in args.models
    ]
    return args.model_copy(update={"models": models})
