"""`rayinfer optimize`: a predictor's folder in another form, verified before it is written."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from rayinfer.errors import ConfigError
from rayinfer.startup_steps import LOGGER, StartupStep
from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.cli.terminal import Phases

if TYPE_CHECKING:
    from rayinfer.predictors.optimized.optimize import Report

MEGABYTE = 1e6
FORM_HELP = (
    "torch-compile[:default|reduce-overhead|max-autotune], onnx, torch-export, aoti, torchscript (deprecated), fp16"
    " (GPUs), bf16, int8-dynamic, int8-static, int8-weight-only"
)


@in_one_line
def optimize(
    model: Annotated[
        str | None, typer.Argument(help="folder, Hugging Face repository, embedded or registered name")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="FORM", help=FORM_HELP)] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="FOLDER", help="verify a folder that this command wrote again")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="folder to write (default: MODEL-FORM here)")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="what to verify and calibrate on: JSON lines with text, text_pair, image or inputs, or a folder of"
            " images (default for texts: Python's documentation)"
        ),
    ] = None,
    labelled: Annotated[
        Path | None, typer.Option(help="JSON lines like those, with the right label, to compare accuracies on")
    ] = None,
    max_difference: Annotated[
        float | None, typer.Option(help="refuse a larger difference of any number, as clients get it")
    ] = None,
    min_agreement: Annotated[
        float | None, typer.Option(help="refuse less agreement of classes, or a smaller mean cosine of vectors")
    ] = None,
    max_accuracy_loss: Annotated[
        float | None, typer.Option(help="refuse a larger loss of accuracy, as a share of labelled inputs")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="with --check: load code that was made elsewhere")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the figures as an object, for scripts")] = False,
) -> None:
    """Write a predictor's folder in another form, which serve and Predictor load; refused if it differs too much."""
    if (check is None) == (model is None) or (model is not None and to is None):
        raise ConfigError("give a model and --to FORM, or --check FOLDER")
    from rayinfer.predictors.optimized.optimize import UserLimits, check_optimized
    from rayinfer.predictors.optimized.optimize import optimize as write_optimized

    limits = UserLimits(max_difference=max_difference, min_agreement=min_agreement, max_accuracy_loss=max_accuracy_loss)
    console = Console(stderr=as_json)
    with _ShownSteps(console):
        if check is not None:
            report = check_optimized(check, limits=limits, trust_remote_code=trust_remote_code)
        else:
            assert model is not None, "checked above"
            assert to is not None, "checked above"
            report = write_optimized(model, to, output, calibration=calibration, labelled=labelled, limits=limits)
    if as_json:
        typer.echo(json.dumps({**asdict(report), "folder": str(report.folder)}))
        return
    console.print(_table(report))
    done = "is what was verified" if check is not None else "is written"
    console.print(f"{report.folder} {done}: rayinfer serve {report.folder}", markup=False, soft_wrap=True)
    if report.form == "torchscript":
        console.print("TorchScript is deprecated in torch: prefer torch-export or aoti", style="yellow")


def _table(report: "Report") -> Table:
    figures, limits = report.figures, report.limits
    table = Table("", "original", report.form, "limit", title=f"{figures.num_items} inputs", title_justify="left")
    table.add_row("size, MB", f"{report.original_bytes / MEGABYTE:.1f}", f"{report.num_bytes / MEGABYTE:.1f}", "")
    table.add_row("largest difference", "", f"{figures.max_difference:.2g}", f"{limits.max_difference:g}")
    table.add_row("agreement", "", f"{figures.agreement:.5f}", f"{limits.min_agreement:g}")
    if figures.accuracy is not None and figures.original_accuracy is not None:
        least = figures.original_accuracy - limits.max_accuracy_loss
        accuracies = (f"{figures.original_accuracy:.4f}", f"{figures.accuracy:.4f}", f"{least:.4f}")
        table.add_row(f"accuracy on {figures.num_labelled}", *accuracies)
    times = (
        ("milliseconds per item", figures.original_seconds_per_item, figures.seconds_per_item),
        ("of the processor", figures.original_cpu_seconds_per_item, figures.cpu_seconds_per_item),
    )
    for name, before, after in times:
        table.add_row(name, f"{before * 1e3:.2f}", f"{after * 1e3:.2f}", "")
    return table


class _ShownSteps(logging.Handler):
    """The library's steps on a terminal: the present one has a spinner, each finished one a line."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._phases = Phases(console)

    def emit(self, record: logging.LogRecord) -> None:
        """Show a step."""
        step = record.args[0] if isinstance(record.args, tuple) else None
        if not isinstance(step, StartupStep):
            return
        if step.seconds is not None:
            self._phases.finish()
            return
        self._phases.enter(step.name)
        if step.num_done is not None:
            self._phases.explain(f"{step.num_done} of {step.num_parts}")

    def __enter__(self) -> None:
        LOGGER.addHandler(self)
        LOGGER.setLevel(logging.INFO)

    def __exit__(self, *error: object) -> None:
        self._phases.stop()
        LOGGER.removeHandler(self)
        LOGGER.setLevel(logging.NOTSET)
