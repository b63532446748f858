"""`rayinfer usage`: what the keys of a file have used, by day and model."""

import json
from typing import Annotated

import typer

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.cli.keys import KeyFileOption, chosen_key_file


@in_one_line
def usage(
    file: KeyFileOption = None,
    days: Annotated[int, typer.Option(min=1, max=3660, help="number of days, today included")] = 30,
    price_per_engine_hour: Annotated[float, typer.Option(min=0.0, help="price by which the cost is shown")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="print a list of objects, for scripts")] = False,
) -> None:
    """Show requests, tokens and engines' time of each key and day (UTC), whether or not a service runs."""
    from rayinfer.access.key_file import KeyFile
    from rayinfer.access.usage import described, first_of_days
    from rayinfer.access.usage_log import UsageLog, usage_log_path

    path = chosen_key_file(file)
    log_path = usage_log_path(path)
    if not log_path.exists():
        raise ConfigError(f"no usage is recorded for {path}: {log_path} is not there")
    names = {key.key_id: key.name for key in KeyFile(path).read()}
    rows = described(UsageLog(log_path).rows(first_of_days(days)), names, price_per_engine_hour)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        typer.echo(f"{len(rows)} rows in {log_path}", err=True)
        return
    for row in rows:
        cost = f"  cost {row['cost']:.4f}" if price_per_engine_hour else ""
        typer.echo(
            f"{row['day']}  {row['key'] or row['key_id']}  {row['model']}  requests {row['requests']:,}  "
            f"tokens in {row['prompt_tokens']:,} (cached {row['cached_tokens']:,}), out {row['output_tokens']:,}  "
            f"engine seconds {row['engine_seconds']:,.1f}{cost}"
        )
    typer.echo(f"{len(rows)} rows in {log_path}")
