"""YAML without surprises: a name that is given twice is an error, where PyYAML drops the first value."""

from typing import Any

import yaml


def load_strictly(text: str) -> Any:
    """Read one document of plain values; raises yaml.YAMLError."""
    return yaml.load(text, Loader=_StrictLoader)


class _StrictLoader(yaml.SafeLoader):  # type: ignore[misc]
    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.composer.ComposerError(None, None, f"{key.value} is given twice", key.start_mark)
                seen.add(key.value)
        return node
