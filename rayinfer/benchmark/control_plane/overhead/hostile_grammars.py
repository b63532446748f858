"""Hostile grammars: schemas and patterns, all different, that take as much time and memory as limits allow."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

MEGABYTE = 2**20


def hostile_forms(seed: int, kinds: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kinds in turn, each with the fields of `structured_outputs` of a grammar that has not come before."""
    draw = random.Random(seed)
    for number in itertools.count():
        for kind in kinds or _KINDS:
            yield kind, _KINDS[kind](number, draw)


def hostile_form_kinds() -> list[str]:
    """Return the names of the kinds."""
    return list(_KINDS)


def _nested_objects(number: int, draw: random.Random) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for depth in range(draw.choice([40, 60, 120, 400])):
        schema = _object(**{f"a{number}x{depth % 7}": schema})
    return {"json": schema}


def _nested_choices(number: int, draw: random.Random) -> dict[str, Any]:
    def doubled(depth: int) -> dict[str, Any]:
        if not depth:
            return {"type": "string"}
        return {"anyOf": [_object(**{f"{name}{number}": doubled(depth - 1)}) for name in "ab"]}

    return {"json": doubled(draw.choice([6, 8, 9]))}


def _doubling_references(number: int, draw: random.Random) -> dict[str, Any]:
    depth = draw.choice([10, 20, 40])
    last = {"type": "string", "const": f"end {number}"}
    definitions: dict[str, Any] = {f"d{depth}": last}
    for level in range(depth):
        reference = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = _object(a=reference, b=reference)
    return {"json": {"$ref": "#/$defs/d0", "$defs": definitions}}


def _recursion(number: int, draw: random.Random) -> dict[str, Any]:
    count = draw.choice([5, 40, 150])
    definitions = {
        f"n{index}": {
            "anyOf": [
                {"type": "array", "items": {"$ref": f"#/$defs/n{(index * 7 + step) % count}"}} for step in range(1, 4)
            ]
            + [{"const": f"{number}-{index}"}]
        }
        for index in range(count)
    }
    return {"json": {"$ref": "#/$defs/n0", "$defs": definitions}}


def _long_enums(number: int, draw: random.Random) -> dict[str, Any]:
    count = draw.choice([500, 2000, 4000])
    return {"json": {"enum": [f"{number}-{draw.random():.8f}" for _ in range(count)]}}


def _long_choices(number: int, draw: random.Random) -> dict[str, Any]:
    return {"choice": [f"{number}-{draw.random():.8f}" for _ in range(draw.choice([500, 2000, 4000]))]}


def _optional_properties(number: int, draw: random.Random) -> dict[str, Any]:
    names = [f"p{number}_{index}" for index in range(draw.choice([200, 800, 1500]))]
    return {"json": {"type": "object", "properties": {name: {"type": "string"} for name in names}}}


def _repetitions(number: int, draw: random.Random) -> dict[str, Any]:
    inner, outer = draw.choice([(1000, 1000), (500, 5000), (50_000, 2)])
    return {"regex": f"(a{{1,{inner + number}}}){{1,{outer}}}b"}


def _unbounded_lookback(number: int, draw: random.Random) -> dict[str, Any]:
    return {"regex": f".*{draw.choice('abcde')}.{{{draw.choice([12, 20, 30])}}}{number}"}


def _alternations(number: int, draw: random.Random) -> dict[str, Any]:
    words = "|".join(f"(x{draw.randrange(10**6)}+)*y" for _ in range(draw.choice([50, 300, 1000])))
    return {"regex": f"({words})+{number}"}


def _patterns_in_schemas(number: int, draw: random.Random) -> dict[str, Any]:
    patterns = [f"^(.*{chr(97 + index % 26)}.{{{10 + index % 12}}}{number})+$" for index in range(draw.choice([5, 25]))]
    members = {f"m{index}": {"type": "string", "pattern": each} for index, each in enumerate(patterns)}
    return {"json": {"type": "object", "properties": members}}


def _lengths(number: int, draw: random.Random) -> dict[str, Any]:
    text = {"type": "string", "minLength": draw.choice([1000, 50_000]), "maxLength": 100_000 + number}
    return {"json": {"type": "array", "items": text, "minItems": 1000, "maxItems": 100_000 + number}}


def _megabytes(number: int, draw: random.Random) -> dict[str, Any]:
    return {"json": {"type": "object", "description": f"{number} " + "x" * MEGABYTE, "properties": {}}}


def _megabytes_of_members(number: int, draw: random.Random) -> dict[str, Any]:
    members = {f"m{number}_{index}": {"enum": [index, number]} for index in range(25_000)}
    return {"json": {"type": "object", "properties": members}}


def _ambiguous_rules(number: int, draw: random.Random) -> dict[str, Any]:
    rules = "\n".join(f"r{i}: r{(i + 1) % 60} r{(i + 7) % 60} | r{(i + 3) % 60} | A" for i in range(60))
    return {"grammar": f'start: r0 "{number}"\n{rules}\nA: /a+/'}


def _chained_rules(number: int, draw: random.Random) -> dict[str, Any]:
    count = draw.choice([150, 2000])  # the second is too long
    rules = "\n".join(f'r{i} ::= "a{i}" | r{i + 1} "b"' for i in range(count))
    return {"grammar": f'root ::= r0 "{number}"\n{rules}\nr{count} ::= "z"'}


_KINDS: Mapping[str, Callable[[int, random.Random], dict[str, Any]]] = {
    make.__name__.replace("_", " ").strip(): make
    for make in (
        *(_nested_objects, _nested_choices, _doubling_references, _recursion, _long_enums, _long_choices),
        *(_optional_properties, _repetitions, _unbounded_lookback, _alternations, _patterns_in_schemas, _lengths),
        *(_megabytes, _megabytes_of_members, _ambiguous_rules, _chained_rules),
    )
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
