"""`rayinfer bench`: the library's benchmarks from the command line."""

import typer

from rayinfer_deployments.cli.bench.engine_benchmarks import (
    gpu,
    jobs,
    kernels,
    offline,
    parallel,
    peers,
    scheduler,
)
from rayinfer_deployments.cli.bench.feature_benchmarks import adapters, kv_store, speculation, structured
from rayinfer_deployments.cli.bench.predictor_benchmarks import predictors
from rayinfer_deployments.cli.bench.service_benchmarks import batches, hostile, router, serve
from rayinfer_deployments.cli.bench.study_benchmarks import autoscaling, quality, roles, routing
from rayinfer_deployments.cli.failures import in_one_line

BENCHMARKS = (
    offline,
    structured,
    kv_store,
    speculation,
    adapters,
    serve,
    batches,
    scheduler,
    parallel,
    kernels,
    predictors,
    gpu,
    jobs,
    peers,
    quality,
    router,
    hostile,
    routing,
    autoscaling,
    roles,
)


def build_application() -> typer.Typer:
    """Register every benchmark as a command of its name."""
    application = typer.Typer(
        help="Measure the engine, its scheduler, a peer, or any OpenAI-compatible server.", no_args_is_help=True
    )
    for benchmark in BENCHMARKS:
        application.command()(in_one_line(benchmark))
    return application
