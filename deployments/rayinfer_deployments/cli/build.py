"""`rayinfer build`: manifests for Kubernetes from one file."""

from pathlib import Path
from typing import Annotated

import typer

from rayinfer_deployments.cli.failures import in_one_line


@in_one_line
def build(
    file: Annotated[Path, typer.Argument(help="service.yaml: models, machines, storage, keys, ingress")],
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of the manifests")] = Path("k8s"),
    overlays: Annotated[
        Path | None,
        typer.Option(help="file of overlays: by name, what each changes (default: built-in ones that fit)"),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="write nothing; fail where a file differs")] = False,
) -> None:
    """Write a service's Serve config, RayService, kustomize base and overlays, and Helm values."""
    from rayinfer.errors import ConfigError
    from rayinfer_deployments.kubernetes.build_files import changed_files, service_files, write_files

    try:
        files, left_out, warnings = service_files(file, overlays)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    for reason in left_out:
        typer.echo(f"left out: {reason}", err=True)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    if not check:
        written = write_files(files, output)
        typer.echo(f"{len(files)} files in {output}, {written} changed")
        return
    changed = changed_files(files, output)
    for path in changed:
        typer.echo(f"{output / path}: differs from what {file} makes", err=True)
    if changed:
        raise typer.Exit(1)
    typer.echo("ok")
