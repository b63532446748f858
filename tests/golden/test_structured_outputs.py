"""Answers of the embedded model that are held to schemas parse and validate, however hot they are drawn."""

import json

import jsonschema
import pytest

from rayinfer import LLM, SamplingParams, StructuredOutputsParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", 3, None]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS = {
    "object": PERSON,
    "recursion": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                },
                "required": ["n", "next"],
                "additionalProperties": False,
            }
        },
    },
    "formats": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
            "share": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        },
        "required": ["day", "code", "share"],
        "additionalProperties": False,
    },
    "exclusive": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": kind}, "n": {"type": "integer"}}, "required": ["kind"]}
            for kind in ("a", "b")
        ]
    },
}


@pytest.fixture(scope="module")
def llm():
    with LLM("smollm2-135m", num_kv_blocks=400, max_num_seqs=24, max_model_len=512) as llm:
        yield llm


def test_hot_answers_validate_or_say_that_they_were_cut(llm):
    params, prompts = [], []
    for schema in SCHEMAS.values():
        form = StructuredOutputsParams(json=schema)
        params.append(SamplingParams(temperature=1.2, n=5, seed=1, max_tokens=160, structured_outputs=form))
        prompts.append(f"An answer to the schema {json.dumps(schema)}: ")
    outputs = llm.generate(prompts, params, use_tqdm=False)
    num_whole = 0
    for schema, output in zip(SCHEMAS.values(), outputs, strict=True):
        for choice in output.outputs:
            assert choice.finish_reason in ("stop", "length")
            if choice.finish_reason == "stop":
                num_whole += 1
                jsonschema.validate(json.loads(choice.text), schema, jsonschema.Draft202012Validator)
    assert num_whole >= 12
