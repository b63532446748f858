"""The `rayinfer` command; each subcommand is a file here and imports what it needs only when it runs."""

import logging
from typing import Annotated

import typer

from rayinfer import __version__
from rayinfer_deployments.cli import (
    batch,
    bench,
    build,
    cache,
    chat,
    check_config,
    dashboards,
    generate,
    keys,
    optimize,
    plan,
    replay,
    serve,
    usage,
)
from rayinfer_deployments.cli.adapters import merge, operations
from rayinfer_deployments.cli.control import canary, engine_control, limits, ps, scale, status
from rayinfer_deployments.cli.doctor import doctor
from rayinfer_deployments.cli.options.adapter_options import ServeCommand
from rayinfer_deployments.cli.top import command as top

OPERATION = "Operate running services"


def build_application() -> typer.Typer:
    """Put the subcommands together."""
    application = typer.Typer(
        help="Serve language models on Ray, with an engine of its own.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback()(_root)
    application.command(cls=ServeCommand)(serve.serve)
    for command in (generate.generate, chat.chat, optimize.optimize, merge.merge, replay.replay, ps.ps, doctor.doctor):
        application.command()(command)
    for command in (
        status.status,
        top.top,
        limits.limits,
        canary.canary,
        scale.scale,
        engine_control.drain,
        engine_control.reload,
    ):
        application.command(rich_help_panel=OPERATION)(command)
    for command in (engine_control.pause, engine_control.resume, engine_control.sleep, engine_control.wake):
        application.command(rich_help_panel=OPERATION)(command)
    settings = (check_config.check_config, check_config.environment, build.build, dashboards.dashboards, plan.plan)
    for command in settings:
        application.command(rich_help_panel=OPERATION)(command)
    application.command()(usage.usage)
    application.add_typer(operations.build_application(), name="adapters", rich_help_panel=OPERATION)
    application.add_typer(batch.build_application(), name="batch")
    application.add_typer(keys.build_application(), name="keys")
    application.add_typer(cache.build_application(), name="cache")
    application.add_typer(bench.build_application(), name="bench")
    return application


def main() -> None:
    """Run the command line."""
    build_application()(prog_name="rayinfer")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(__version__)
        raise typer.Exit


def _root(
    debug: Annotated[bool, typer.Option("--debug", help="log details, and tracebacks of errors")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if debug:
        logging.basicConfig(level=logging.INFO)
        logging.getLogger("rayinfer_deployments").setLevel(logging.DEBUG)
        logging.getLogger("rayinfer").setLevel(logging.DEBUG)
