"""Rules that the tests keep: they use the public face of the code, as it is."""

import ast
from collections.abc import Iterable, Iterator

from support.architecture.sources import PACKAGES, Source, is_within

FAULT_INJECTION = "tests.support.faults"  # breaks running processes on purpose
NAMED_TUPLE_METHODS = {"_asdict", "_fields", "_make", "_replace"}
PATCHING_CALLS = {"setattr", "delattr", "patch", "object"}


def patched_code(tests: Iterable[Source]) -> list[str]:
    """Return each place where a test replaces a part of our modules, classes or objects."""
    return [
        f"{test.at(node.lineno)} replaces a part of {ast.unparse(target)}: pass another one in"
        for test in _without_fault_injection(tests)
        for own in [_own_names(test.nodes)]
        for node in test.nodes
        for target in _patched(node, own)
    ]


def private_uses(tests: Iterable[Source], packages: Iterable[Source]) -> list[str]:
    """Return each place where a test imports or reads a private name that another module defines."""
    tests = list(_without_fault_injection(tests))
    private = {name for source in [*tests, *packages] for name in _defined_names(source.nodes) if _is_private(name)}
    return [
        f"{test.at(node.lineno)} uses {name}: test the public face, or make the name public"
        for test in tests
        for node in test.nodes
        for name in _private_names(node, private)
    ]


def _without_fault_injection(tests: Iterable[Source]) -> Iterator[Source]:
    return (test for test in tests if not is_within(test.module, FAULT_INJECTION))


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] in PACKAGES


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in {"_", *NAMED_TUPLE_METHODS}


def _root(node: ast.expr) -> str:
    """Return the name that an expression begins with: a of a.b(c).d."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported_names(nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names if _is_ours(alias.name)}
    return names


def _own_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of our modules, classes and functions, and of what a call of one of them returned."""
    names = _imported_names(nodes)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _root(node.value) in names:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _patched(node: ast.AST, own: set[str]) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and node.args:
        called = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        first = node.args[0]
        is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
        if called in PATCHING_CALLS and (_is_ours(first.value) if is_text else _root(first) in own):
            yield first


def _private_names(node: ast.AST, private: set[str]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and (_is_ours(node.module) or is_within(node.module or "", "support")):
        yield from (alias.name for alias in node.names if _is_private(alias.name))
    elif isinstance(node, ast.Attribute) and node.attr in private:
        if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
            yield node.attr
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"getattr", "setattr", "hasattr", "delattr"}:
        named = node.args[1] if len(node.args) > 1 else None
        if isinstance(named, ast.Constant) and named.value in private:
            yield named.value


def _defined_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _root(node.value) == "self":
            yield node.attr
