import contextlib
import time

import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.grammar_checks import GrammarChecks
from rayinfer.grammars.spec import StructuredOutputsParams


@pytest.fixture(scope="module")
def checks():
    return GrammarChecks()


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def doubling(depth):
    if not depth:
        return {"type": "string"}
    inner = doubling(depth - 1)
    return {"anyOf": [{"type": "object", "properties": {name: inner}, "required": [name]} for name in "ab"]}


TAG = {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f"]}
NEW_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [{"begin": "<f>", "content": {"type": "json_schema", "json_schema": {}}, "end": "</f>"}],
    },
}


@pytest.mark.parametrize(
    "fields",
    [
        {"json": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "integer"}}}},
        {"json": {"$ref": "#/$defs/list", "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}}},
        {"json_object": True, "disable_any_whitespace": True},
        {"regex": "[a-z]+@[a-z]+[.]com"},
        {"choice": ["yes", 'no "quoted"', "ünïcode", "back\\slash"]},
        {"grammar": 'root ::= "a" | "b" [0-9]+'},
        {"grammar": 'start: "a" /[0-9]+/'},
        {"grammar": 'start: <tool> "a"'},
        {"structural_tag": TAG},
        {"structural_tag": NEW_TAG},
    ],
)
def test_grammars_of_every_kind_are_accepted(checks, fields):
    checks.check(StructuredOutputsParams(**fields), ("<tool>",))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"type": "string", "not": {}}}, "not"),
        ({"json": {"type": "string", "format": "nope"}}, "Unknown format: nope"),
        ({"json": {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}}, "oneOf"),
        ({"json": {"type": "object", "dependencies": {"a": ["b"]}}}, "dependencies"),
        ({"json": {"type": "string", "pattern": "(?=x)x"}}, "look-around"),
        ({"json": {"$ref": "http://elsewhere/schema"}}, "http://elsewhere/schema"),
        ({"json": {"type": 3}}, "type"),
        ({"json": {"type": "object", "properties": {f"p{i}": {} for i in range(400)}}}, "max_items_in_row: 1000"),
        ({"regex": "("}, "regex"),
        ({"grammar": "start: missing"}, "missing"),
        ({"grammar": 'start: <absent> "a"'}, "absent"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": "root ::= " + " | ".join(f'"{n:05d}"' for n in range(500))}, "at most 4096 characters"),
        ({"structural_tag": {"structures": []}}, "structures"),
        ({"structural_tag": {**TAG, "triggers": ["<g"]}}, "no trigger begins '<f>'"),
        ({"structural_tag": {"format": {"type": "json_schema"}}}, "triggered_tags"),
    ],
)
def test_unsupported_keywords_are_refused_by_name(checks, fields, message):
    spec = StructuredOutputsParams(**fields)
    for _ in range(2):  # compiled, and remembered
        with pytest.raises(InvalidParameter, match=message):
            checks.check(spec, ("<tool>",))


@pytest.mark.parametrize(
    "fields",
    [
        {"json": nested(100)},
        {"json": doubling(8)},
        {"json": {"enum": [f"value-{i}" for i in range(4000)]}},
        {"json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}},
        {"json": {"anyOf": [{"type": "string", "pattern": f"a{{{i}}}.*b{{{i}}}"} for i in range(600)]}},
        {"regex": "((a{1,1000}){1,1000}){1,1000}"},
        {"regex": "(.*a.{30}){20}"},
    ],
)
def test_hostile_grammars_end_within_bounds(checks, fields):
    started, own = time.monotonic(), time.thread_time()
    with contextlib.suppress(InvalidParameter):
        checks.check(StructuredOutputsParams(**fields))
    assert time.thread_time() - own < 0.05  # the calling thread waits, and does not compile
    assert time.monotonic() - started < 10
