"""Names of metrics and labels in PromQL expressions."""

import re
from dataclasses import dataclass, field

STRING = re.compile(r'"[^"]*"')
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
MATCHER = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!=|!~|=)")
LABEL_LIST = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
WINDOW = re.compile(r"\[[^\]]*\]")
WORD = re.compile(r"(?<![\w.$:])([a-zA-Z_:][\w:]*)(?![\w:])(?!\s*\()")
KEYWORDS = {"and", "or", "unless", "bool", "by", "without", "on", "ignoring", "sum", "max", "min", "count", "le"}


@dataclass(slots=True)
class NamesOfExpression:
    """Names in one expression."""

    metrics: set[str] = field(default_factory=set)
    matched: set[tuple[str, str]] = field(default_factory=set)  # metric and label of a matcher
    kept: set[str] = field(default_factory=set)  # labels in `by` and `on`


def names_in(expression: str) -> NamesOfExpression:
    """Find the metrics, matchers and kept labels of an expression."""
    names = NamesOfExpression()
    text = STRING.sub('""', expression)
    for metric, matchers in SELECTOR.findall(text):
        names.metrics.add(metric)
        names.matched |= {(metric, label) for label in MATCHER.findall(matchers)}
    for word, labels in LABEL_LIST.findall(text):
        if word in ("by", "on"):
            names.kept |= {label.strip() for label in labels.split(",") if label.strip()}
    text = WINDOW.sub("", LABEL_LIST.sub("", SELECTOR.sub(r" ", text)))
    names.metrics |= {word for word in WORD.findall(text) if word not in KEYWORDS and not re.fullmatch(r"e\d*", word)}
    return names


def mistakes_in(expression: str, known: dict[str, set[str]]) -> list[str]:
    """List metrics that are not known, and labels that they lack; `known` has the labels by metric."""
    names = names_in(expression)
    mistakes = [f"unknown metric {metric}" for metric in names.metrics - known.keys()]
    target = {"job", "instance", "le"}
    mistakes += [
        f"{metric} has no label {label}"
        for metric, label in names.matched
        if metric in known and label not in known[metric] | target
    ]
    labels = set().union(*(known.get(metric, set()) for metric in names.metrics)) | target
    return mistakes + [f"no metric has the label {label}" for label in names.kept - labels]
