"""Strict schemas of manifests: Kubernetes' own from kubernetes-validate, custom resources from lists of fields."""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

KUBERNETES_VERSION = "v1.35.0"
CUSTOM_RESOURCES = [Path(__file__).with_name(f"{name}_resources.yaml") for name in ("custom", "published")]
OWN_KINDS = {
    "v1 Service": "io.k8s.api.core.v1.Service",
    "v1 ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "v1 PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "apps/v1 StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
    "policy/v1 PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "networking.k8s.io/v1 NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
}
PLAIN = {
    "any": {},
    "unlisted": {"not": {}},
    "quantity": {"type": ["string", "number"]},
    **{name: {"type": name} for name in ("string", "integer", "number", "boolean")},
}


def schema_mistakes(manifest: dict[str, Any]) -> list[str]:
    """List what a manifest's schema refuses: unknown fields, missing ones, wrong types."""
    kind = f"{manifest.get('apiVersion')} {manifest.get('kind')}"
    if kind not in known_kinds():
        return [f"{kind}: unknown kind"]
    validator = Draft202012Validator({"$ref": f"#/$defs/{known_kinds()[kind]}", "$defs": _definitions()})
    errors = validator.iter_errors(manifest)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in errors]


@cache
def known_kinds() -> dict[str, str]:
    """Return the definition of each kind by `apiVersion kind`."""
    return OWN_KINDS | {kind: f"custom.{kind.split()[1]}" for kind in _custom()["kinds"]}


@cache
def _custom() -> dict[str, Any]:
    files = [yaml.safe_load(file.read_text()) for file in CUSTOM_RESOURCES]
    return {part: {name: text for file in files for name, text in file[part].items()} for part in ("kinds", "types")}


@cache
def _definitions() -> dict[str, Any]:
    package = find_spec("kubernetes_validate")  # its data alone: its code has dependencies of its own
    assert package is not None, "kubernetes-validate is not installed: make check-k8s does it"
    assert package.submodule_search_locations, package
    schemas = Path(package.submodule_search_locations[0]) / "kubernetes-json-schema"
    folder = schemas / f"{KUBERNETES_VERSION}-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    for schema in definitions.values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    for name, fields in _custom()["types"].items():
        definitions[f"custom.{name}"] = _object(fields)
    metadata = {"$ref": "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
    for kind, spec in _custom()["kinds"].items():
        version, name = kind.split()
        definitions[f"custom.{name}"] = {
            "type": "object",
            "properties": {
                "apiVersion": {"const": version},
                "kind": {"const": name},
                "metadata": metadata,
                "spec": _schema(spec),
            },
            "required": ["apiVersion", "kind", "metadata", "spec"],
            "additionalProperties": False,
        }
    return definitions


def _object(fields: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name.rstrip("!"): _schema(text) for name, text in fields.items()},
        "required": [name.rstrip("!") for name in fields if name.endswith("!")],
        "additionalProperties": False,
    }


def _schema(text: str) -> dict[str, Any]:
    if text in PLAIN:
        return PLAIN[text]
    if text.startswith("["):
        return {"type": "array", "items": _schema(text[1:-1])}
    if text.startswith("{"):
        return {"type": "object", "additionalProperties": _schema(text[1:-1])}
    if text.startswith("="):
        return {"enum": text[1:].split("|")}
    if text.startswith("core."):
        return {"$ref": f"#/$defs/io.k8s.api.{text}"}
    if text.startswith("meta."):
        return {"$ref": f"#/$defs/io.k8s.apimachinery.pkg.apis.{text}"}
    assert text in _custom()["types"], f"{text}: no such type"
    return {"$ref": f"#/$defs/custom.{text}"}
