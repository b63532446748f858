"""Files of `rayinfer build`: read, computed, compared and written."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rayinfer.errors import ConfigError
from rayinfer_deployments.kubernetes.helm_files import helm_files
from rayinfer_deployments.kubernetes.kustomize_files import HEADER, kustomize_files, overlaid, to_yaml
from rayinfer_deployments.kubernetes.serve_config import serve_config
from rayinfer_deployments.kubernetes.service_file import ServiceFile
from rayinfer_deployments.monitoring.monitoring_files import MONITORING_FOLDERS, monitoring_files
from rayinfer_deployments.monitoring.objectives import Objectives
from rayinfer_deployments.strict_yaml import load_strictly

BUILT_IN_OVERLAYS = Path(__file__).with_name("overlays.yaml")
OWNED_FOLDERS = ("base", "overlays", "helm", *MONITORING_FOLDERS)  # all that is in them is written here
OVERLAY_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"


class BuiltFiles(NamedTuple):
    """Texts by their paths, which built-in overlays do not fit the service, and what it may lose."""

    texts: dict[str, str]
    left_out: list[str]
    warnings: list[str]


def service_files(file: Path, overlays: Path | None = None) -> BuiltFiles:
    """Compute all texts; raises ConfigError, and OSError.

    Overlays of a file of the user's must fit the service; of the built-in ones those that do not are left out.
    """
    settings = _read(file)
    service = _checked(str(file), settings, {})
    variants, left_out = _read(overlays or BUILT_IN_OVERLAYS), []
    for name, changes in list(variants.items()):
        try:
            _checked(f"overlay {name}", settings, changes)
            if not re.fullmatch(OVERLAY_NAME, str(name)):
                raise ConfigError(f"overlay {name}: the name of a folder has small letters, digits and dashes only")
        except ConfigError as error:
            if overlays is not None:
                raise ConfigError(f"{overlays}: {error}") from None
            left_out.append(str(error))
            del variants[name]
    files = {"serve-config.yaml": HEADER + to_yaml(serve_config(service))}
    objectives = Objectives() if service.monitoring is None else service.monitoring.objectives
    files |= monitoring_files(objectives)
    files |= kustomize_files(settings, variants) | helm_files(settings, variants)
    return BuiltFiles(files, left_out, _warnings(service))


def _warnings(service: ServiceFile) -> list[str]:
    if service.batches_folder is None or service.batches_claim:
        return []
    return [
        f"app.batches_folder: {service.batches_folder} lies in the head's pod, and files and batches are lost with it:"
        " storage.batches_claim names a claim for them"
    ]


def write_files(files: dict[str, str], folder: Path) -> int:
    """Write texts, and delete what earlier builds left in the same folders; return the number of changes."""
    changed = changed_files(files, folder)
    for path in changed:
        target = folder / path
        if path not in files:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files[path])
    return len(changed)


def changed_files(files: dict[str, str], folder: Path) -> list[str]:
    """List the paths whose files differ, are missing, or are left over."""
    different = [path for path, text in files.items() if not _is_equal(folder / path, text)]
    present = (path for name in OWNED_FOLDERS for path in (folder / name).rglob("*") if path.is_file())
    left_over = [str(path.relative_to(folder)) for path in present if str(path.relative_to(folder)) not in files]
    return sorted(different + left_over)


def _is_equal(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


def _checked(place: str, settings: dict[str, Any], changes: dict[str, Any]) -> ServiceFile:
    try:
        return overlaid(settings, changes)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = load_strictly(file.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{file}: it holds no names")
    return settings
