"""The checklist: every check on one loaded model, in the order in which they do not disturb each other."""

import asyncio
from collections.abc import Callable, Iterator

from rayinfer.config import EngineConfig
from rayinfer.errors import RayinferError
from rayinfer_deployments.cli.doctor.model_checks import engine_checks, execution_checks
from rayinfer_deployments.cli.doctor.model_checks.checked_model import CheckedModel, Expectations, open_model
from rayinfer_deployments.cli.doctor.model_checks.results import CheckResult, failed
from rayinfer_deployments.cli.doctor.model_checks.service_checks import check_cache_and_errors

CHECKS: dict[str, Callable[[CheckedModel], CheckResult]] = {
    "warm-up": engine_checks.check_warm_up,  # first, as nothing may have been computed before
    "eval mode": execution_checks.check_eval_mode,
    "inference mode": execution_checks.check_inference_mode,
    "batching": engine_checks.check_batching,
    "optimised form": execution_checks.check_optimized_form,
    "memory": engine_checks.check_memory,
    "threads": execution_checks.check_threads,
    "dtype": execution_checks.check_dtype,
    "timeouts": engine_checks.check_timeouts,
    "quantization": execution_checks.check_quantization,
}


def check_model(config: EngineConfig, expectations: Expectations) -> Iterator[CheckResult]:
    """Load a model and yield the result of each check; raises ConfigError and ModelLoadError."""
    with open_model(config, expectations) as model:
        for name, check in CHECKS.items():
            try:
                yield check(model)
            except RayinferError as error:
                yield failed(name, f"it could not be checked: {error}", "see the reason")
        yield from asyncio.run(check_cache_and_errors(model))
