"""`rayinfer replay`: a recorded schedule, repeated on an engine in this process."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.cli.plain_text import plain_text

if TYPE_CHECKING:
    from rayinfer.engine.recording.replay import Difference
    from rayinfer.tokenization.tokenizer import Tokenizer

MAX_SHOWN = 400
STEPS_SHOWN = 100  # between two lines of progress


@in_one_line
def replay(
    recording: Annotated[
        Path, typer.Argument(metavar="TRACE", help="file that `rayinfer serve --record-schedule FOLDER` has written")
    ],
    model: Annotated[
        str | None, typer.Option(help="repeat it with this model (default: the recorded one's source)")
    ] = None,
    num_threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: as recorded)")] = None,
) -> None:
    """Repeat a recorded schedule step by step and show the first difference; exit code 1 if there is one.

    Requests come between the same steps, at the same times, with the same seeds; plans, KV blocks and tokens are
    compared.
    """
    from rayinfer.engine.recording.replay import ScheduleReplay

    if not recording.is_file():
        raise ConfigError(f"there is no file {str(recording)!r}")
    from rayinfer.config import engine_config
    from rayinfer.engine.build import build_engine
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer.tokenization.tokenizer import Tokenizer

    schedule = ScheduleReplay(recording)
    changes = {"model": model, "num_threads": num_threads}
    config = engine_config(**schedule.header.config | {name: value for name, value in changes.items() if value})
    folder = resolve_model(config.model)
    engine = build_engine(config, folder, recorder=schedule)
    try:
        difference = schedule.run(engine, _show_progress)
    finally:
        engine.exit()
    typer.echo(f"{schedule.num_steps} steps and {schedule.num_tokens} tokens repeated")
    if difference is None:
        typer.echo("no difference")
        return
    _show(difference, Tokenizer.from_folder(folder))
    raise typer.Exit(1)


def _show_progress(num_steps: int) -> None:
    if num_steps % STEPS_SHOWN == 0:
        typer.echo(f"{num_steps} steps", err=True)


def _show(difference: "Difference", tokenizer: "Tokenizer") -> None:
    typer.echo(f"first difference at step {difference.step}: {difference.what}")
    if difference.request_id:
        typer.echo(f"  request   {plain_text(difference.request_id, MAX_SHOWN)}")
    for label, text, token in (
        ("recorded", difference.recorded, difference.recorded_token),
        ("repeated", difference.repeated, difference.repeated_token),
    ):
        word = "" if token is None else f"  {tokenizer.decode([token], skip_special_tokens=False)!r}"
        typer.echo(f"  {label}  {plain_text(text + word, MAX_SHOWN)}")
