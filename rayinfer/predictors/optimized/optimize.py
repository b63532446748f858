"""`rayinfer optimize`: a predictor's folder in another form, verified before it gets its name."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rayinfer.config import EngineConfig, engine_config
from rayinfer.engine.ranks.rank_coordinates import any_device
from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.models.checkpoints.model_folder import is_optimized
from rayinfer.predictors.optimized.conversion import convert
from rayinfer.predictors.optimized.forms import ChosenForm, Limits, parse_form
from rayinfer.predictors.optimized.graph_files import check_packages
from rayinfer.predictors.optimized.machine import check_precision, describe_machine, installed_versions
from rayinfer.predictors.optimized.manifest import Manifest, read_manifest, write_manifest
from rayinfer.predictors.optimized.optimized_runner import build_optimized_runner
from rayinfer.predictors.optimized.original import Original, load_original
from rayinfer.predictors.optimized.reference import load_reference, save_reference
from rayinfer.predictors.optimized.samples import Samples, read_samples, split_for_calibration
from rayinfer.predictors.optimized.verification import (
    Figures,
    Outputs,
    Progress,
    check_limits,
    compare,
    compute_in_turn,
)
from rayinfer.startup_steps import CountedStartupStep, startup_step

VERIFYING = "verifying"

Converter = Callable[
    [Original, ChosenForm, Sequence[Any], Path], dict[str, Any]
]  # writes a folder, returns its options


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A verified folder."""

    folder: Path
    form: str
    num_bytes: int
    original_bytes: int
    figures: Figures
    limits: Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class UserLimits:
    """Limits in place of a form's own; None keeps it."""

    max_difference: float | None = None
    min_agreement: float | None = None
    max_accuracy_loss: float | None = None

    def over(self, limits: Limits) -> Limits:
        """Return limits with these in place; raises ConfigError for one that cannot be."""
        return limits.changed(self.max_difference, self.min_agreement, self.max_accuracy_loss)


def optimize(
    model: str,
    form: str,
    output: Path | None = None,
    *,
    calibration: Path | None = None,
    labelled: Path | None = None,
    limits: UserLimits = UserLimits(),
    device: torch.device | None = None,
    converter: Converter = convert,
) -> Report:
    """Write a predictor's folder in another form, verified on the samples in `calibration`.

    Raises LimitExceeded for a form that differs too much, ConfigError for one that this model or machine does not
    have, NotSupported for a model that generates. Then nothing is written.
    """
    chosen, device = parse_form(form), device or any_device()
    limits.over(chosen.form.limits)  # refuses wrong values before anything is loaded
    output = (output or Path(f"{Path(model).name}-{chosen.name.replace(':', '-')}")).expanduser().absolute()
    if output.exists():
        raise ConfigError(f"{output} is there already: name another folder with --output, or remove it")
    check_packages(chosen.form, to_write=True)
    check_precision(chosen.name, device)
    with startup_step("loading the original"):
        original = load_original(model, device)
    tokenizer = original.tokenizer
    samples = read_samples(calibration, original.runner, tokenizer)
    judged = None if labelled is None else read_samples(labelled, original.runner, tokenizer, labelled=True)
    calibrated: Sequence[Any] = samples.items
    if chosen.form.name == "int8-static":
        calibrated, samples = split_for_calibration(samples)
    with _unfinished(output) as folder:
        with startup_step(f"converting to {chosen.name}"):
            options = converter(original, chosen, calibrated, folder)
        effective = limits.over(chosen.form.limits_for(has_classes=bool(original.runner.description.labels)))
        manifest = Manifest(
            form=chosen.name,
            kind=original.kind,
            original={"model": model, "digest": original.digest(), "num_bytes": _original_bytes(original)},
            options=options,
            versions=installed_versions(),
            machine=describe_machine(device),
            verified={},
        )
        write_manifest(folder, manifest)  # it is loaded as it will be
        figures = _verify(original, folder, samples, judged, effective)
        write_manifest(folder, _verified(manifest, samples.source, figures, effective, judged))
        return _report(folder, output, chosen.name, manifest, figures, effective)


def check_optimized(
    folder: Path,
    *,
    limits: UserLimits = UserLimits(),
    device: torch.device | None = None,
    **settings: Any,
) -> Report:
    """Verify a folder again, on the items and the original's numbers that it holds.

    Raises ModelLoadError for files that are not those that were verified, and LimitExceeded.
    """
    folder, device = folder.expanduser().absolute(), device or any_device()
    if not is_optimized(folder):
        raise ConfigError(f"{folder} was not written by `rayinfer optimize`")
    manifest = read_manifest(folder)
    with startup_step("loading the form"):
        runner = build_optimized_runner(engine_config(model=str(folder), **settings), folder, device)
    description = runner.description
    items, results = load_reference(folder, description.tasks[0])
    found = compute_in_turn([runner], items, CountedStartupStep(VERIFYING))[0]
    before, effective = _earlier(manifest, limits)
    original = Outputs(
        results=results,
        seconds_per_item=before.original_seconds_per_item,
        cpu_seconds_per_item=before.original_cpu_seconds_per_item,
    )
    figures = compare(description, original, found)
    check_limits(figures, effective)
    runner.close()
    return _report(folder, folder, manifest.form, manifest, figures, effective)


def _earlier(manifest: Manifest, limits: UserLimits) -> tuple[Figures, Limits]:
    """Return the figures of a manifest, and its limits with the user's in place."""
    try:
        return Figures(**manifest.verified["figures"]), limits.over(Limits(**manifest.verified["limits"]))
    except (KeyError, TypeError) as error:
        raise ModelLoadError(f"the manifest lacks what was verified: {error}") from None


def _verify(original: Original, folder: Path, samples: Samples, judged: Samples | None, limits: Limits) -> Figures:
    config: EngineConfig = engine_config(model=str(folder))
    runner = build_optimized_runner(config, folder, original.device)
    progress: Progress = CountedStartupStep(VERIFYING)
    description = original.runner.description
    one, other = compute_in_turn([original.runner, runner], samples.items, progress)
    figures = compare(description, one, other)
    check_limits(figures, limits)
    save_reference(folder, samples.items, one.results)
    if judged is not None:
        one, other = compute_in_turn([original.runner, runner], judged.items, CountedStartupStep("measuring accuracy"))
        on_labels = compare(description, one, other, judged.labels)
        check_limits(on_labels, limits)
        figures = Figures(**{
            **asdict(figures),
            "num_labelled": on_labels.num_labelled,
            "accuracy": on_labels.accuracy,
            "original_accuracy": on_labels.original_accuracy,
            "max_difference": max(figures.max_difference, on_labels.max_difference),
            "agreement": min(figures.agreement, on_labels.agreement),
        })  # fmt: skip
    runner.close()
    return figures


def _verified(manifest: Manifest, source: str, figures: Figures, limits: Limits, judged: Samples | None) -> Manifest:
    data = {"samples": source} | ({} if judged is None else {"labelled": judged.source})
    verified = {"data": data, "figures": asdict(figures), "limits": asdict(limits)}
    return Manifest(**{**asdict(manifest), "verified": verified})


def _report(folder: Path, name: Path, form: str, manifest: Manifest, figures: Figures, limits: Limits) -> Report:
    return Report(
        folder=name,
        form=form,
        num_bytes=sum(path.stat().st_size for path in folder.glob("model*") if path.is_file()),
        original_bytes=int(manifest.original["num_bytes"]),
        figures=figures,
        limits=limits,
    )


def _original_bytes(original: Original) -> int:
    if original.folder is None:
        return sum(tensor.nbytes for tensor in original.module().state_dict().values())
    return sum(path.stat().st_size for path in original.folder.glob("*.safetensors"))


@contextmanager
def _unfinished(output: Path) -> Iterator[Path]:
    """Give a hidden folder that gets its name at the end, and is removed where that fails."""
    folder = output.with_name(f".{output.name}.{os.getpid()}")
    folder.mkdir(parents=True)
    try:
        yield folder
        folder.rename(output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
