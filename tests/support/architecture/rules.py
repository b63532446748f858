"""The architecture's rules: each takes sources and returns one sentence per violation."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from support.architecture import floors as house
from support.architecture.sources import Import, Source, is_within
from support.architecture.vocabulary import RETIRED

OWN_PACKAGES = ("rayinfer", "rayinfer_kernels", "rayinfer_deployments")
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "base", "manager", "handler"}
FIELD_WORDS = {"block_manager"}
RETIRED_WORD = re.compile(f"(?<=_)({'|'.join(RETIRED)})(?=_)")
QUESTION = re.compile(r"(Who|Whom|What|Whose|How|Where|Which|When|Why|Whether)\b", re.IGNORECASE)


def misplaced_modules(sources: Iterable[Source]) -> list[str]:
    """Every module has exactly one floor."""
    return [
        f"{source.module} is on {len(rooms)} floors {rooms}: give it one place in tests/support/architecture/floors.py"
        for source in sources
        if source.module not in house.LAZY_EXPORTS and len(rooms := _rooms_of(source.module)) != 1
    ]


def upward_imports(sources: Sequence[Source]) -> list[str]:
    """Imports stay in the room or go to a lower floor."""
    modules = {source.module for source in sources}
    return [
        complaint
        for source in sources
        if source.module not in house.LAZY_EXPORTS
        for found in source.imports
        if (complaint := _judge_import(source, found, modules))
    ]


def used_neighbors(sources: Sequence[Source]) -> set[tuple[str, str]]:
    """The pairs of rooms on one floor of which the first imports the second."""
    modules = {source.module for source in sources}
    pairs = set()
    for source in sources:
        own = _rooms_of(source.module)
        for found in source.imports:
            other = _rooms_of(_target_module(found, modules))
            if own and other and own != other and _floor_of(own[0]) == _floor_of(other[0]):
                pairs.add((own[0], other[0]))
    return pairs


def stray_ray_imports(sources: Iterable[Source]) -> list[str]:
    """Ray is imported in few rooms only."""
    return [
        f"{source.at(found.line)} imports {found.target}: Ray belongs in {' and '.join(house.RAY_ROOMS)}"
        for source in sources
        if not any(is_within(source.module, room) for room in house.RAY_ROOMS)
        for found in source.imports
        if is_within(found.target, "ray")
    ]


def kernel_internals(sources: Sequence[Source]) -> list[str]:
    """Others import the kernels' front only."""
    modules = {source.module for source in sources}
    return [
        f"{source.at(found.line)} imports {target}: export the name from {house.KERNEL_FRONT[-1]}"
        for source in sources
        if not any(is_within(source.module, room) for room in (house.KERNELS, house.KERNEL_BENCHMARKS))
        for found in source.imports
        if is_within(target := _target_module(found, modules), house.KERNELS) and target not in house.KERNEL_FRONT
    ]


def late_imports(sources: Iterable[Source]) -> list[str]:
    """Imports stand at the top of their file."""
    return [
        f"{source.at(line)} imports inside a function or class: move it to the top of the file"
        for source in sources
        if not _may_import_late(source.module)
        for line in _nested_import_lines(source.nodes)
    ]


def environment_uses(sources: Iterable[Source]) -> list[str]:
    """Environment variables are read in one module, and set in few."""
    return [
        f"{source.at(line)} touches the environment: rayinfer/config.py reads it and passes values on"
        for source in sources
        if source.module not in house.ENVIRONMENT_MODULES
        for line in _environment_lines(source.nodes)
    ]


def oversized(sources: Iterable[Source]) -> list[str]:
    """Files and functions stay short enough to be read at once."""
    complaints = []
    for source in sources:
        if (lines := len(source.text.splitlines())) > house.MAX_FILE_LINES:
            complaints.append(f"{source.module} has {lines} lines, more than {house.MAX_FILE_LINES}")
        for node in source.nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list):
                # A kernel has many parameters, each on a line of its own, which are no work to read: they count as one.
                lines = (node.end_lineno or node.lineno) - node.body[0].lineno + 2
            if lines > house.MAX_FUNCTION_LINES:
                complaints.append(
                    f"{source.at(node.lineno)} {node.name} has {lines} lines, more than {house.MAX_FUNCTION_LINES}"
                )
    return complaints


def empty_names(sources: Iterable[Source]) -> list[str]:
    """A file's name says what is in it."""
    return [
        f"{source.module}: {sorted(words)} names nothing; name the file by its noun"
        for source in sources
        if (stem := source.module.rpartition(".")[2]) not in FIELD_WORDS
        and (words := EMPTY_WORDS.intersection(stem.split("_")))
    ]


def question_docstrings(sources: Iterable[Source]) -> list[str]:
    """A module's or class's docstring is a noun phrase: it begins with no question word."""
    return [
        f"{source.at(node.body[0].lineno)} begins its docstring with {found.group()!r}: begin with a noun"
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.Module | ast.ClassDef) and (found := QUESTION.match(ast.get_docstring(node) or ""))
    ]


def retired_words(sources: Iterable[Source]) -> list[str]:
    """Names of files, classes, functions and parameters, and first lines of docstrings, use the glossary's words."""
    return [
        f"{source.at(line)} has {word!r} in {text!r}: {RETIRED[word]} (rayinfer/GLOSSARY.md)"
        for source in sources
        for line, text in [(1, source.module.rpartition(".")[2]), *_named_texts(source.nodes)]
        for word in RETIRED_WORD.findall(_separated(text))
    ]


def crowded_folders(sources: Iterable[Source]) -> list[str]:
    """A folder holds few files beside its sub-packages."""
    counts = Counter(source.path.parent for source in sources if source.path.name != "__init__.py")
    return [
        f"{folder} has {count} files, more than {house.MAX_FOLDER_FILES}: divide it into sub-packages"
        for folder, count in counts.items()
        if count > house.MAX_FOLDER_FILES
    ]


def _named_texts(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node) or ""
            yield getattr(node, "lineno", 1), docstring.partition("\n")[0]


def _separated(text: str) -> str:
    """Separate the words of a name or a sentence by underscores."""
    return f"_{re.sub(r'[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])', '_', text).lower()}_"


def _judge_import(source: Source, found: Import, modules: set[str]) -> str | None:
    where = source.at(found.line)
    if found.is_relative:
        return f"{where} imports relatively: write the whole path"
    target = _target_module(found, modules)
    if target.partition(".")[0] not in OWN_PACKAGES:
        return None
    if target in house.LAZY_EXPORTS:
        is_version = found.name == "__version__"
        return None if is_version else f"{where} imports {found.name or target} from {target}: name its own module"
    own, other = _rooms_of(source.module), _rooms_of(target)
    if not own or not other:
        return f"{where} imports {target}, and one of the two is on no floor"
    below, here = _floor_of(other[0]), _floor_of(own[0])
    if own == other or below < here or (own[0], other[0]) in house.NEIGHBORS:
        return None
    return f"{where}, on floor {here}, imports {target}, on floor {below}"


def _target_module(found: Import, modules: set[str]) -> str:
    """Name the module that `from a import b` reads: a.b where that is a module or a room, else a."""
    whole = f"{found.target}.{found.name}"
    is_room = found.target in house.LAZY_EXPORTS and _rooms_of(whole)
    return whole if found.name and (whole in modules or is_room) else found.target


@cache
def _rooms_of(module: str) -> list[str]:
    rooms = [room for floor in house.FLOORS for room in floor if is_within(module, room)]
    return [room for room in rooms if not any(other != room and is_within(other, room) for other in rooms)]


def _floor_of(room: str) -> int:
    return next(number for number, rooms in enumerate(house.FLOORS, start=1) if room in rooms)


def _may_import_late(module: str) -> bool:
    return module in house.LAZY_EXPORTS or module.startswith((house.COMMAND_LINE, *house.FOREIGN_ROOMS))


def _nested_import_lines(nodes: Iterable[ast.AST]) -> list[int]:
    nests = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    lines = {
        inner.lineno
        for node in nodes
        if isinstance(node, nests)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    return sorted(lines)


def _environment_lines(nodes: Iterable[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_NAMES and getattr(node.value, "id", "") == "os":
            yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (node.lineno for alias in node.names if alias.name in ENVIRONMENT_NAMES)
