"""Groups of a compressed-tensors configuration (`config_groups`): how the weights of which layers were quantized."""

import re
from collections.abc import Mapping
from typing import Any

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.format_reader import QuantizationSettings

_PATTERN = "re:"
_LINEAR, _EMBEDDING = frozenset({"Linear", "Module"}), frozenset({"Embedding", "Module"})  # with their parent class


class CompressionGroup:
    """One of `config_groups`: how the weights of some layers were quantized."""

    def __init__(self, settings: QuantizationSettings, name: str, group: Any) -> None:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            settings.refuse("config_groups without weights", "it must say how weights were quantized")
        for kind in ("input_activations", "output_activations"):
            scheme = group.get(kind)
            if isinstance(scheme, Mapping) and scheme.get("dynamic") is not True:
                settings.refuse(f"static {kind}", "use a checkpoint of dynamic or of no quantization of activations")
        bits = weights.get("num_bits")
        if type(bits) is not int or bits not in (4, 8):
            settings.refuse(f"weights of {bits} bits (num_bits)", "4 and 8 are read")
        self.name, self.bits = name, bits
        self.targets = _names(settings, f"targets of {name}", group.get("targets"))
        self._strategy = str(weights.get("strategy"))
        if self._strategy not in ("tensor", "channel", "group", "block"):
            settings.refuse(f"the strategy {self._strategy!r}", "tensor, channel, group and block are read")
        self.is_symmetric = bool(weights.get("symmetric", True))
        self.has_order = weights.get("actorder") in ("group", "dynamic", True)
        block = weights.get("block_structure")
        is_block = isinstance(block, list) and len(block) == 2 and all(type(each) is int and each > 0 for each in block)
        if self._strategy == "block" and not is_block:
            settings.refuse(f"block_structure {block!r}", "it must be two whole numbers, outputs and inputs")
        self.block: list[int] | None = block if self._strategy == "block" else None
        self._kind, self._group_size = str(weights.get("type", "int")), weights.get("group_size")

    def __str__(self) -> str:
        words = {"tensor": "a scale per matrix", "channel": "a scale per output"}
        groups = words.get(self._strategy, f"groups of {self._group_size}")
        if self.block is not None:
            groups = "blocks of {} x {}".format(*self.block)
        return f"{self._kind} of {self.bits} bits, {groups}"


class CompressionGroups:
    """All groups, and which one a layer belongs to."""

    def __init__(self, settings: QuantizationSettings) -> None:
        groups = settings.fields.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            settings.refuse(f"config_groups {groups!r}", "it must name the quantized layers")
        self._groups = [CompressionGroup(settings, name, group) for name, group in groups.items()]
        self._by_target = {target: group for group in self._groups for target in group.targets}
        self._ignored = _names(settings, "ignore", settings.fields.get("ignore"))

    def __str__(self) -> str:
        return " and ".join(dict.fromkeys(map(str, self._groups)))

    def of(self, layer: str, tensor: str) -> CompressionGroup:
        """Return the group of a layer, which has this quantized tensor: by its name, by a pattern, then by its class.

        A single group is that of all layers: tensors may have names that modules had not when they were quantized.
        """
        if _matches(layer, self._ignored):
            raise ModelLoadError(f"tensor {tensor} is quantized, but `ignore` in config.json names its layer")
        if matching := _matches(layer, list(self._by_target)):
            return self._by_target[matching[0]]
        if len(self._groups) > 1:
            raise ModelLoadError(f"tensor {tensor} is quantized, but no `targets` of config_groups name its layer")
        return self._groups[0]


def _names(settings: QuantizationSettings, field: str, value: Any) -> list[str]:
    """Check a list of class names, of modules' names, and of patterns behind `re:`."""
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        settings.refuse(f"{field} {value!r}", "it must be a list of names")
    for each in names:
        try:
            re.compile(each.removeprefix(_PATTERN) if each.startswith(_PATTERN) else "")
        except (re.error, RecursionError, OverflowError) as error:
            settings.refuse(f"{field} {each!r}", f"the pattern is wrong: {error}")
    return names


def _matches(layer: str, targets: list[str]) -> list[str]:
    """Return the targets that name a layer, the most specific first, as the package compressed-tensors orders them."""
    classes = _EMBEDDING if "embed" in layer.rpartition(".")[2] else _LINEAR
    patterns = sorted(target for target in targets if target.startswith(_PATTERN))
    return [
        *(target for target in targets if target == layer),
        *(target for target in patterns if re.match(target.removeprefix(_PATTERN), layer)),
        *(target for target in sorted(targets) if target in classes),
    ]
