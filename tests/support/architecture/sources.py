"""The source files of the project's packages, parsed once, with the modules that each imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "rayinfer": ROOT / "rayinfer",
    "rayinfer_kernels": ROOT / "kernels" / "rayinfer_kernels",
    "rayinfer_deployments": ROOT / "deployments" / "rayinfer_deployments",
}
IMPORTING_CALLS = {"import_module", "__import__"}


@dataclass(frozen=True)
class Import:
    """One module that a source imports, and where."""

    target: str  # dotted name; for `from a import b` both "a.b" and "a" may be meant
    line: int
    name: str | None = None  # b in `from a import b`
    is_relative: bool = False


@dataclass(frozen=True)
class Source:
    """One Python file of a package."""

    module: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the file's syntax tree, from its module on."""
        return _parse(self.path, self.text)

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of the file: in functions, for type checkers and by a literal name through importlib too."""
        return [found for node in self.nodes for found in _imports_of(node)]

    def at(self, line: int) -> str:
        """Name a line of the file as editors understand it."""
        return f"{self.module} ({self.path.name}:{line})"


def find_sources(packages: dict[str, Path] = PACKAGES) -> list[Source]:
    """Read the packages' folders; import nothing."""
    return [
        Source(_module_name(package, path.relative_to(folder)), path)
        for package, folder in packages.items()
        for path in sorted(folder.rglob("*.py"))
    ]


@cache  # a file belongs to several lists of sources
def _parse(path: Path, text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text, filename=str(path))))


def is_within(module: str, room: str) -> bool:
    """Say whether a dotted name is a room or lies beneath it."""
    return module == room or module.startswith(room + ".")


def _module_name(package: str, path: Path) -> str:
    parts = [package, *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_of(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield Import(node.module or "", node.lineno, alias.name, is_relative=node.level > 0)
    elif isinstance(node, ast.Call) and node.args:
        function, first = node.func, node.args[0]
        called = getattr(function, "attr", None) or getattr(function, "id", None)
        if called in IMPORTING_CALLS and isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield Import(first.value, node.lineno)
