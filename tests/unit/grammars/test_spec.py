import json

import msgspec
import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.spec import MAX_GRAMMAR_CHARS, StructuredOutputsParams
from rayinfer.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one"),
        ({"json_object": False}, "exactly one"),
        ({"regex": "a", "choice": ["a"]}, "exactly one of .*regex, choice"),
        ({"regex": ""}, "regex must be a non-empty string"),
        ({"regex": 5}, "regex must be a non-empty string"),
        ({"json": "[1"}, "json must be JSON"),
        ({"json": "[1]"}, "json must be an object"),
        ({"json": {"type": {1, 2}}}, "json must be JSON"),
        ({"json": {"minimum": float("nan")}}, "json must be JSON"),
        ({"json": "[" * 60_000}, "nested too deeply"),
        ({"json": '{"a":' * 256 + "{}" + "}" * 256}, "json must be nested at most 256 deep"),
        ({"json": {"x-guidance": {"lenient": True}}}, "x-guidance"),
        ({"json": {"enum": ["a" * MAX_GRAMMAR_CHARS]}}, f"at most {MAX_GRAMMAR_CHARS} characters"),
        ({"grammar": "a" * (MAX_GRAMMAR_CHARS + 1)}, f"at most {MAX_GRAMMAR_CHARS} characters"),
        ({"choice": []}, "choice must be a non-empty list"),
        ({"choice": "abc"}, "choice must be a non-empty list"),
        ({"choice": ["a", ""]}, "choice must be a non-empty string"),
        ({"choice": ["a" * 40_000, "b" * 40_000]}, "characters in all"),
        ({"json_object": 1}, "json_object must be true or false"),
        ({"regex": "a", "disable_any_whitespace": "no"}, "disable_any_whitespace must be true or false"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern is not supported"),
    ],
)
def test_bad_specifications_are_refused_by_field(fields, message):
    with pytest.raises(InvalidParameter, match=message) as caught:
        StructuredOutputsParams.of(fields)
    assert caught.value.param == "structured_outputs"


def test_specifications_survive_the_wire_and_being_built_again():
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    specs = [{"json": schema}, {"json": json.dumps(schema)}, {"choice": ["a", "b", "a"]}, {"structural_tag": {"a": 1}}]
    for fields in specs:
        params = SamplingParams(structured_outputs=fields)
        read = msgspec.msgpack.Decoder(SamplingParams).decode(msgspec.msgpack.encode(params))
        assert read == params
        assert StructuredOutputsParams.of(read.structured_outputs) == params.structured_outputs
    assert SamplingParams(structured_outputs={"choice": ["a", "b", "a"]}).structured_outputs.choice == ("a", "b")


@pytest.mark.parametrize(
    "setting",
    [{"min_tokens": 1}, {"allowed_token_ids": [1]}, {"bad_words": ["a"]}, {"ignore_eos": True}],
)
def test_settings_that_contradict_a_grammar_are_refused(setting):
    with pytest.raises(InvalidParameter, match="not allowed beside structured_outputs") as caught:
        SamplingParams(structured_outputs={"regex": "a"}, **setting)
    assert caught.value.param in setting


def test_what_is_accepted_is_read_again_from_the_depth_of_any_calls():
    deepest = StructuredOutputsParams(json='{"a":' * 255 + "{}" + "}" * 255)
    sent = msgspec.msgpack.encode(deepest)

    def read(num_calls):
        return read(num_calls - 1) if num_calls else msgspec.msgpack.decode(sent, type=StructuredOutputsParams)

    assert read(300) == deepest
