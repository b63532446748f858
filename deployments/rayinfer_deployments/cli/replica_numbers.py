"""Replica counts on the command line: a number of engines, or bounds for autoscaling."""

from pathlib import Path
from typing import Any

from rayinfer.errors import ConfigError
from rayinfer.routing.autoscaling_settings import autoscaling_settings
from rayinfer_deployments.cli.control.limits import mapping_in


def engines_asked_for(replicas: str | None, autoscaling: Path | None) -> dict[str, Any]:
    """Turn `--replicas N` or `MIN:MAX` and `--autoscaling FILE` into a model's settings; raises ConfigError."""
    fewest, colon, most = (replicas or "").partition(":")
    if autoscaling is None and not colon:
        return {"num_replicas": 1 if replicas is None else _number(fewest, 1)}
    if autoscaling is not None and replicas is not None and not colon:
        raise ConfigError(f"--replicas {replicas} leaves nothing to --autoscaling: give MIN:MAX, or one of the two")
    settings = {} if autoscaling is None else mapping_in(autoscaling)
    if colon:
        settings |= {"min_replicas": _number(fewest, 0), "max_replicas": _number(most, 1)}
    return {"autoscaling": autoscaling_settings(settings).model_dump(mode="json")}


def _number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"--replicas takes N, or MIN:MAX, of at least {least}; got {text!r}")
    return int(text)
