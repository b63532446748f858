"""`rayinfer check-config` and `rayinfer environment`: for services that `serve deploy` starts."""

from pathlib import Path
from typing import Annotated

import typer

from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.cluster.ray_environment import Profile


@in_one_line
def check_config(
    files: Annotated[list[Path], typer.Argument(help="files for `serve deploy`")],
) -> None:
    """Check Serve config files: unknown names are errors, at every level."""
    from rayinfer_deployments.config_check import mistakes_in

    mistakes = [f"{file}: {mistake}" for file in files for mistake in mistakes_in(file)]
    for mistake in mistakes:
        typer.echo(mistake, err=True)
    if mistakes:
        raise typer.Exit(1)
    typer.echo("ok")


@in_one_line
def environment(
    profile: Annotated[Profile, typer.Option(help="what the service is tuned for")] = Profile.LATENCY,
    one_machine: Annotated[
        bool, typer.Option("--one-machine", help="keep Ray's ports on loopback: no other node can join")
    ] = False,
) -> None:
    """Print the environment variables that Ray needs on every node of a cluster that you start yourself."""
    import shlex

    from rayinfer_deployments.cluster.haproxy_files import loopback_settings
    from rayinfer_deployments.cluster.ray_environment import LOOPBACK_ONLY, cluster_settings

    throughput = profile == Profile.THROUGHPUT
    settings = cluster_settings(throughput=throughput) | (loopback_settings() if throughput else {})
    for name, value in (settings | (LOOPBACK_ONLY if one_machine else {})).items():
        typer.echo(f"export {name}={shlex.quote(value)}")
