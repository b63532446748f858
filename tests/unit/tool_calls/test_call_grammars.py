import json
import random

import jsonschema
import pytest
from llguidance import LLTokenizer, TokenizerWrapper

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.compilation import compile_grammar
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.tool_calls.answer_parser import AnswerParser
from rayinfer.tool_calls.call_grammars import MAX_SCHEMA_BYTES, arguments_schema, call_grammar
from rayinfer.tool_calls.formats import FORMATS
from rayinfer.tool_calls.tools import Tool, ToolChoice, read_tool_choice
from unit.tool_calls.parsed_answers import parse

TOKENS = (
    *("<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|start|>", "<|end|>", "<|tool_call|>"),
    *("<|/tool_call|>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁calls▁end｜>", "<|python_tag|>", "[TOOL_CALLS]", "</s>"),
)
UNITS = {
    "type": "object",
    "description": "Units of a place",
    "properties": {"unit": {"enum": ["km ::= 1", "m/s"]}, "days": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
FLAG = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}


def tool(name, parameters, strict=True):
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


TOOLS = [tool("units", UNITS), tool("set-flag", FLAG)]


class Bytes:
    """A tokenizer of bytes, an end token and special tokens."""

    bos_token_id = None
    eos_token_id = 256

    def __init__(self, special):
        self.tokens = [bytes([byte]) for byte in range(256)] + [name.encode() for name in ("<eos>", *special)]
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


def compiled(lark, special=(), **settings):
    tokenizer = Bytes(special)
    wrapped = LLTokenizer(TokenizerWrapper(tokenizer), n_vocab=len(tokenizer.tokens))
    return tokenizer, compile_grammar(StructuredOutputsParams(grammar=lark, **settings), wrapped, tuple(special))


def walk(tokenizer, matcher, chooser, most=4000):
    """Write an answer at random; spaces are rare, and an end is taken where one is allowed."""
    text = b""
    for _ in range(most):
        allowed = [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]
        if 256 in allowed and chooser.random() < 0.5:
            return text.decode()
        inked = [token for token in allowed if token not in (9, 10, 13, 32, 256)]
        choice = chooser.choice(inked or [token for token in allowed if token != 256] or [256])
        if choice == 256:
            return text.decode()
        assert matcher.consume_token(choice)
        text += tokenizer.tokens[choice]
    raise AssertionError(text)


def calls_in(text, tool_format, choice, chooser):
    cuts = sorted(chooser.choices(range(len(text) + 1), k=5))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return parse(AnswerParser(tool_format, choice.schemas), pieces)


@pytest.mark.parametrize("special", [(), TOKENS], ids=["text", "tokens"])
@pytest.mark.parametrize("name", FORMATS)
def test_required_calls_of_every_format_parse_and_validate(name, special):
    chooser = random.Random(name)
    choice = read_tool_choice(TOOLS, "required")
    grammar = call_grammar(FORMATS[name], choice, special)
    for _ in range(8):
        text = walk(*compiled(grammar.lark, special), chooser)
        parsed = calls_in(text, grammar.tool_format, choice, chooser)
        assert parsed.calls, text
        assert parsed.text == ""
        for called, arguments in parsed.calls:
            jsonschema.validate(json.loads(arguments), choice.schemas[called])


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "harmony"])
def test_strict_calls_may_follow_text_of_every_format(name):
    choice = read_tool_choice(TOOLS, "auto")
    grammar = call_grammar(FORMATS[name], choice, TOKENS)
    tokenizer, matcher = compiled(grammar.lark, TOKENS)
    call = walk(
        *compiled(call_grammar(FORMATS[name], read_tool_choice(TOOLS, "required"), TOKENS).lark, TOKENS),
        random.Random(1),
    )
    ids = [tokenizer.tokens.index(token.encode()) for token in TOKENS]

    def tokens_of(text):
        found = []
        while text:
            token = next((each for each in ids if text.startswith(tokenizer.tokens[each])), None)
            found.append(text[0] if token is None else token)
            text = text[1 if token is None else len(tokenizer.tokens[token]) :]
        return found

    assert matcher.deep_copy().validate_tokens(tokens_of(call.encode())) == len(tokens_of(call.encode()))
    text = "It is <b>5</b> & more."
    assert matcher.validate_tokens(tokens_of(text.encode())) == len(text)
    broken = tokens_of(call.replace("units", "unknown").replace("set-flag", "unknown").encode())
    assert matcher.validate_tokens(broken) < len(broken)


def test_one_call_at_most_without_parallel_calls():
    choice = read_tool_choice(TOOLS, "required", parallel=False)
    chooser = random.Random(2)
    for _ in range(8):
        text = walk(*compiled(call_grammar(FORMATS["hermes"], choice).lark), chooser)
        assert text.count("<tool_call>") == 1


def test_an_answer_is_a_call_or_what_the_schema_wants():
    choice = read_tool_choice(TOOLS, "auto")
    grammar = call_grammar(FORMATS["hermes"], choice, other_answer=json.dumps(FLAG))
    for text in ('{"on":true}', '<tool_call>\n{"name": "set-flag", "arguments": {"on":false}}\n</tool_call>'):
        _, matcher = compiled(grammar.lark)
        assert matcher.validate_tokens(list(text.encode())) == len(text)
    assert matcher.validate_tokens(list(b"Hello")) == 0


def test_reasoning_may_precede_calls():
    lark = call_grammar(FORMATS["hermes"], read_tool_choice(TOOLS, "required")).lark
    call = '<tool_call>\n{"name": "set-flag", "arguments": {"on":false}}\n</tool_call>'
    for special in ((), ("<think>", "</think>")):
        _, matcher = compiled(lark, special, reasoning_tags=("<think>", "</think>"))
        begin, end = ([257], [258]) if special else (list(b"<think>"), list(b"</think>"))
        for tokens in ([*begin, *b"a <b> ", *end, *b"\n\n", *call.encode()], list(call.encode())):
            assert matcher.deep_copy().validate_tokens(tokens) == len(tokens), special
        _, matcher = compiled(lark, special, reasoning_tags=("<think>", "</think>"), begins_in_reasoning=True)
        tokens = [*b"so ", *end, *call.encode()]
        assert matcher.deep_copy().validate_tokens(tokens) == len(tokens)


def test_parameters_of_megabytes_are_refused():
    members = {f"member {number}": {"type": "string"} for number in range(20_000)}
    tool = Tool("f", {"type": "object", "properties": members}, False, {})
    with pytest.raises(InvalidParameter, match=f"at most {MAX_SCHEMA_BYTES} bytes"):
        call_grammar(FORMATS["hermes"], ToolChoice(tools=(tool,), mode="required"))


def test_parameters_that_are_no_object_are_refused():
    with pytest.raises(InvalidParameter, match="'f' must be an object"):
        call_grammar(FORMATS["hermes"], read_tool_choice([tool("f", {"type": "array"})], "required"))
    with pytest.raises(InvalidParameter, match="x-guidance"):
        call_grammar(FORMATS["hermes"], read_tool_choice([tool("f", {"x-guidance": {}})], "required"))


def test_keywords_without_effect_are_left_out_and_properties_of_their_names_are_not():
    schema = {"title": "T", "properties": {"title": {"description": "d", "type": "string", "enum": ["title"]}}}
    assert arguments_schema(schema)["properties"] == {"title": {"type": "string", "enum": ["title"]}}


def test_objects_are_closed_where_their_schema_does_not_open_them():
    inner = {"type": "object", "properties": {"a": {}}}
    closed = inner | {"additionalProperties": False}
    assert arguments_schema({"properties": {"x": inner}})["properties"] == {"x": closed}
    assert arguments_schema({"properties": {"x": {"items": inner}}})["properties"] == {"x": {"items": closed}}
    for schema in ({}, inner | {"additionalProperties": True}, inner | {"anyOf": [inner]}, {"$defs": {"d": inner}}):
        assert arguments_schema(schema) == schema


def test_what_a_strict_schema_cannot_express_is_refused_and_else_left_out():
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    with pytest.raises(InvalidParameter):
        compiled(call_grammar(FORMATS["hermes"], read_tool_choice([tool("f", schema)], "required")).lark)
    compiled(call_grammar(FORMATS["hermes"], read_tool_choice([tool("f", schema, strict=False)], "required")).lark)
