"""`rayinfer dashboards`: dashboards for Grafana, and rules and configuration for Prometheus."""

from pathlib import Path
from typing import Annotated

import typer

from rayinfer_deployments.cli.failures import in_one_line


@in_one_line
def dashboards(
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of the files")] = Path("monitoring"),
    target: Annotated[str, typer.Option(help="HOST:PORT of the service")] = "127.0.0.1:8000",
    key_file: Annotated[
        str | None, typer.Option(help="file with an API key of the scope metrics, where Prometheus finds it")
    ] = None,
    ttft: Annotated[float, typer.Option(help="objective of the time to first token, seconds")] = 1.0,
    ttft_target: Annotated[float, typer.Option(help="share of the streams that keep it")] = 0.95,
    itl: Annotated[float, typer.Option(help="objective of the time between two tokens, seconds")] = 0.1,
    itl_target: Annotated[float, typer.Option(help="share of the tokens that keep it")] = 0.99,
    success_target: Annotated[float, typer.Option(help="share of the streams that do not fail")] = 0.999,
) -> None:
    """Write dashboards for Grafana, alerts and a configuration for Prometheus (on Kubernetes: `rayinfer build`)."""
    from pydantic import ValidationError

    from rayinfer.errors import ConfigError
    from rayinfer.setting_names import describe_validation_error
    from rayinfer_deployments.monitoring.monitoring_files import monitoring_files, prometheus_config
    from rayinfer_deployments.monitoring.objectives import Objectives

    try:
        objectives = Objectives(
            ttft_s=ttft,
            ttft_target=ttft_target,
            itl_s=itl,
            itl_target=itl_target,
            success_target=success_target,
        )
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error)) from None
    files = monitoring_files(objectives) | {"prometheus.yaml": prometheus_config(target, key_file)}
    for path, text in files.items():
        (output / path).parent.mkdir(parents=True, exist_ok=True)
        (output / path).write_text(text)
    typer.echo(f"{len(files)} files in {output}; prometheus --config.file={output / 'prometheus.yaml'}")
