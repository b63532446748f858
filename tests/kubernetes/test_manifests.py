"""Every manifest against strict schemas, the check of Serve's configuration, and a random misspelling of each kind."""

import copy
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes.manifest_rules import manifest_mistakes, selector_mistakes

pytestmark = pytest.mark.k8s

NUM_MISSPELLINGS = 50
VALUES_OF_USERS = ("nodeSelector", "nodeLabels", "args", "csi", "volumeAttributes")  # their names are free


def test_every_manifest_has_known_fields_only(rendered: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    mistakes = [
        f"{overlay}: {manifest['kind']}: {mistake}"
        for overlay, manifests in rendered.items()
        for manifest in manifests
        for mistake in manifest_mistakes(manifest, tmp_path)
    ]
    assert mistakes == []


def test_selectors_match_pods(rendered: dict[str, list[dict[str, Any]]]) -> None:
    without_operator = {name: manifests for name, manifests in rendered.items() if name != "kserve"}
    assert {
        name: found for name, manifests in without_operator.items() if (found := selector_mistakes(manifests))
    } == {}


def test_random_misspellings_are_caught(rendered: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    chance = random.Random(20_260)
    manifests = [manifest for objects in rendered.values() for manifest in objects]
    missed, caught = [], 0
    while caught + len(missed) < NUM_MISSPELLINGS:
        manifest = copy.deepcopy(chance.choice(manifests))
        place = misspell(manifest, chance)
        if manifest_mistakes(manifest, tmp_path):
            caught += 1
        else:
            missed.append(f"{manifest.get('kind')}: {place}")
    assert missed == []


def misspell(manifest: dict[str, Any], chance: random.Random) -> str:
    """Change a letter of one name in a manifest, in Serve's configuration too; return where."""
    config = manifest.get("spec", {}).get("serveConfigV2")
    if config is not None and chance.random() < 0.2:
        inner = yaml.safe_load(config)
        place = misspell(inner, chance)
        manifest["spec"]["serveConfigV2"] = yaml.safe_dump(inner, sort_keys=False)
        return f"serveConfigV2.{place}"
    mapping, key, place = chance.choice(list(names_in(manifest, "")))
    letters = [index for index, letter in enumerate(key) if letter.isalpha()]
    index = chance.choice(letters)
    other = chance.choice([letter for letter in "abcdefghijklmnopqrstuvwxyz" if letter != key[index].lower()])
    wrong = key[:index] + other + key[index + 1 :]
    renamed = {wrong if name == key else name: value for name, value in mapping.items()}
    mapping.clear()
    mapping.update(renamed)
    return place


def names_in(value: Any, place: str) -> list[tuple[dict[str, Any], str, str]]:
    if isinstance(value, list):
        return [found for index, entry in enumerate(value) for found in names_in(entry, f"{place}{index}.")]
    if not isinstance(value, dict):
        return []
    found = []
    for key, inner in value.items():
        if re.search("[a-zA-Z]", key):
            found.append((value, key, f"{place}{key}"))
        if key not in VALUES_OF_USERS or place.startswith("applications"):
            found += names_in(inner, f"{place}{key}.")
    return found
