"""`rayinfer doctor`: checks of this machine, with the command that fixes each problem."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.cluster.ray_environment import set_ray_settings

STYLES = {"ok": "green", "advice": "yellow", "missing": "red"}


@in_one_line
def doctor(as_json: Annotated[bool, typer.Option("--json", help="for scripts: a list of objects")] = False) -> None:
    """Check this machine; exit code 1 when something needed is missing."""
    set_ray_settings(owns_ray=False)
    from rayinfer_deployments.cli.doctor.machine_checks import check_machine

    findings = check_machine()
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table("", "found", "to do", box=None)
        for finding in findings:
            table.add_row(Text(finding.name, STYLES[finding.verdict]), Text(finding.found), Text(finding.remedy))
        Console().print(table)
    if any(finding.verdict == "missing" for finding in findings):
        raise typer.Exit(1)
