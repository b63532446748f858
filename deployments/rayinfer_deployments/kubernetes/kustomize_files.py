"""Kustomize: a base from the service's file, and overlays that differ from it by merge patches."""

import re
from typing import Any

import yaml

from rayinfer_deployments.kubernetes.manifests import manifests
from rayinfer_deployments.kubernetes.service_file import ServiceFile, service_of
from rayinfer_deployments.kubernetes.setting_types import Manifest

# Kubernetes' reader of YAML takes these for truth values and numbers where PyYAML takes them for texts.
AMBIGUOUS = re.compile(r"[yYnN]|[-+]?\.?[0-9][0-9a-fA-F_.:+xo-]*")

HEADER = "# Written by `rayinfer build`; change service.yaml or the overlay's settings and build again.\n"


def kustomize_files(settings: dict[str, Any], overlays: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Write a base and its overlays: texts by path. Raises ConfigError for settings that are refused."""
    base = manifests(service_of(settings))
    files = _folder("base", [_file_name(manifest) for manifest in base], base)
    for name, changes in overlays.items():
        files |= _overlay_files(name, base, manifests(overlaid(settings, changes)))
    return files


def overlaid(settings: dict[str, Any], changes: dict[str, Any]) -> ServiceFile:
    """Check the settings of an overlay: those of the base, changed."""
    return service_of(merged(settings, changes))


def merged(base: Any, changes: Any) -> Any:
    """Apply changes: mappings are merged, lists and values replaced, and null removes a key (RFC 7386).

    A mapping in place of a list changes each of its entries.
    """
    if isinstance(base, list) and isinstance(changes, dict):
        return [merged(entry, changes) for entry in base]
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    result = dict(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key, {}) if isinstance(value, dict) else None, value)
    return result


def merge_patch(before: Any, after: Any) -> dict[str, Any]:
    """Find the changes that make `after` of `before`."""
    patch: dict[str, Any] = {}
    for key in [*before, *(key for key in after if key not in before)]:
        if key not in after:
            patch[key] = None
        elif key not in before:
            patch[key] = after[key]
        elif isinstance(before[key], dict) and isinstance(after[key], dict):
            if inner := merge_patch(before[key], after[key]):
                patch[key] = inner
        elif before[key] != after[key]:
            patch[key] = after[key]
    return patch


def to_yaml(manifest: Any) -> str:
    """Write YAML for people: keys in their order, texts of several lines as blocks."""
    return str(yaml.dump(manifest, Dumper=_BlockDumper, sort_keys=False, width=120, allow_unicode=True))


def _overlay_files(name: str, base: list[Manifest], wanted: list[Manifest]) -> dict[str, str]:
    before = {_identity(manifest): manifest for manifest in base}
    after = {_identity(manifest): manifest for manifest in wanted}
    added = [manifest for identity, manifest in after.items() if identity not in before]
    patches: list[tuple[str, Manifest]] = []
    for identity, manifest in before.items():
        head = {key: manifest[key] for key in ("apiVersion", "kind")} | {
            "metadata": {"name": manifest["metadata"]["name"]}
        }
        if identity not in after:
            patches.append((f"delete-{_file_name(manifest)}", {"$patch": "delete"} | head))
        elif changes := merge_patch(manifest, after[identity]):
            metadata = head["metadata"] | changes.pop("metadata", {})
            patches.append((f"patch-{_file_name(manifest)}", head | {"metadata": metadata} | changes))
    files = _folder(f"overlays/{name}", ["../../base", *map(_file_name, added)], added, [path for path, _ in patches])
    for path, patch in patches:
        files[f"overlays/{name}/{path}"] = HEADER + to_yaml(patch)
    return files


def _folder(
    folder: str, resources: list[str], objects: list[Manifest], patches: list[str] | None = None
) -> dict[str, str]:
    kustomization: Manifest = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    }
    if patches:
        kustomization["patches"] = [{"path": path} for path in patches]
    files = {f"{folder}/kustomization.yaml": HEADER + to_yaml(kustomization)}
    for manifest in objects:
        files[f"{folder}/{_file_name(manifest)}"] = HEADER + to_yaml(manifest)
    return files


def _identity(manifest: Manifest) -> tuple[str, str, str]:
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]


def _file_name(manifest: Manifest) -> str:
    return f"{manifest['kind'].lower()}-{manifest['metadata']['name']}.yaml"


class _BlockDumper(yaml.SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if AMBIGUOUS.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_BlockDumper.add_representer(str, _represent_text)
