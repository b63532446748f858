"""From the specification of a structured output to llguidance's form of its grammar."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark, is_lark_syntax

from rayinfer.errors import InvalidParameter, shown
from rayinfer.grammars.spec import StructuredOutputsParams

# One space, or a new line and its indentation: without a bound, a small model may never leave white space.
_BOUNDED_WHITESPACE = r"\x20|\r?\n[\x20\x09]{0,20}"
MAX_GBNF_CHARS = 4096  # its conversion is Python, and takes time by the square of the rules
_OBJECT = '{"type":"object"}'


def grammar_text(spec: StructuredOutputsParams, special_tokens: Collection[str] = ()) -> str:
    """Return the grammar; raises InvalidParameter for what it cannot express.

    `special_tokens` are texts that a model has single tokens for, which no other tokens spell.
    """
    answer = _answer_text(spec, special_tokens)
    if spec.reasoning_tags is None:
        return answer
    begin, end = spec.reasoning_tags
    grammar = json.loads(answer)["grammars"][0] if answer.startswith("{") else {"lark_grammar": answer}
    lark = _reasoning_text(begin, end, special_tokens, begins_inside=spec.begins_in_reasoning)
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**grammar, "name": "answer"}]})


def _reasoning_text(begin: str, end: str, special_tokens: Collection[str], *, begins_inside: bool) -> str:
    """Return the grammar of an answer behind reasoning, which may be left out unless it has begun."""
    is_token = lark_literal(end, special_tokens) == end
    text = f"TEXT? {end}\nTEXT: /(?s:.+)/" if is_token else f"text\ntext[suffix={json.dumps(end)}]: /(?s:.*)/"
    opening = "" if begins_inside else lark_literal(begin, special_tokens)
    presence = "" if begins_inside else "?"
    return f"start: reasoning{presence} SPACE? @answer\nreasoning: {opening} {text}\nSPACE: /[ \\n]{{1,4}}/"


def lark_literal(text: str, special_tokens: Collection[str]) -> str:
    """Write text in Lark, special tokens in it by their names; nothing for none."""
    names = sorted((token for token in special_tokens if _is_nameable(token)), key=len, reverse=True)
    if not any(name in text for name in names):
        return json.dumps(text, ensure_ascii=False) if text else ""
    parts: list[str] = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
    return " ".join(part if part in names else json.dumps(part, ensure_ascii=False) for part in parts if part)


def _is_nameable(token: str) -> bool:
    return re.fullmatch(r"<[^<>\s\[\]]+>", token) is not None


def _answer_text(spec: StructuredOutputsParams, special_tokens: Collection[str]) -> str:
    if spec.json is not None or spec.json_object:
        options = json_options(is_compact=spec.disable_any_whitespace)
        return LLMatcher.grammar_from_json_schema(_OBJECT if spec.json is None else spec.json, overrides=options)
    if spec.regex is not None:
        return LLMatcher.grammar_from_regex(spec.regex)
    if spec.choice is not None:
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in spec.choice)
        return LLMatcher.grammar_from_lark(
            f"start: CHOICE\nCHOICE: {texts}"
        )  # one lexeme: as rules, a thousand are too many
    if spec.grammar is not None:
        return LLMatcher.grammar_from_lark(_as_lark(spec.grammar))
    assert isinstance(spec.structural_tag, str)
    return _tagged_text(json.loads(spec.structural_tag), special_tokens, is_compact=spec.disable_any_whitespace)


def json_options(*, is_compact: bool) -> Any:
    """Return llguidance's options for a JSON schema."""
    options: dict[str, Any] = {"lenient": False, "coerce_one_of": False, "whitespace_flexible": not is_compact}
    return options if is_compact else {**options, "whitespace_pattern": _BOUNDED_WHITESPACE}


def _as_lark(grammar: str) -> str:
    if not is_lark_syntax(grammar) and len(grammar) > MAX_GBNF_CHARS:
        raise InvalidParameter(
            f"structured_outputs.grammar in GBNF must have at most {MAX_GBNF_CHARS} characters, got {len(grammar)};"
            " in Lark's form it may have more",
            "structured_outputs",
        )
    try:
        return any_to_lark(grammar)
    except Exception as error:  # the converter's errors have no class of their own
        raise InvalidParameter(f"structured_outputs.grammar: {error}", "structured_outputs") from None


def _tagged_text(tag: Mapping[str, Any], special_tokens: Collection[str], *, is_compact: bool) -> str:
    tags = []
    for part in _parts(tag):
        schema = {**part["schema"], "x-guidance": json_options(is_compact=is_compact)}
        tags.append(StructTag(trigger=part["trigger"], begin=part["begin"], grammar=schema, end=part["end"]))
    is_special = {each.trigger in special_tokens for each in tags}
    if len(is_special) > 1:
        raise _invalid("triggers must all be special tokens, or none")
    return StructTag.to_grammar(tags, assume_special=is_special == {True})


def _parts(tag: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read both forms that vLLM takes: structures with triggers, and a format of triggered tags."""
    if isinstance(tag.get("format"), dict):
        form = tag["format"]
        if form.get("type") != "triggered_tags":
            raise _invalid(f"format.type must be triggered_tags, got {shown(form.get('type'))}")
        for option in ("at_least_one", "stop_after_first", "excludes"):
            if form.get(option):
                raise _invalid(f"format.{option} is not supported")
        structures, triggers = [_structure(each) for each in _objects(form, "tags")], form.get("triggers")
    else:
        structures, triggers = _objects(tag, "structures"), tag.get("triggers")
    if not isinstance(triggers, list) or not all(isinstance(each, str) and each for each in triggers):
        raise _invalid("triggers must be a list of non-empty texts")
    return [_part(structure, triggers) for structure in structures]


def _structure(tag: Mapping[str, Any]) -> dict[str, Any]:
    content = tag.get("content")
    if not isinstance(content, dict) or content.get("type") != "json_schema":
        raise _invalid("the content of a tag must be of type json_schema")
    return {"begin": tag.get("begin"), "schema": content.get("json_schema"), "end": tag.get("end")}


def _part(structure: Mapping[str, Any], triggers: list[str]) -> dict[str, Any]:
    begin, schema, end = (structure.get(name) for name in ("begin", "schema", "end"))
    if not isinstance(begin, str) or not begin or not isinstance(end, str) or not isinstance(schema, dict):
        raise _invalid("each structure needs the texts begin and end, and a schema")
    if "x-guidance" in schema:
        raise _invalid("a schema must not have the keyword x-guidance")
    trigger = next((each for each in triggers if begin.startswith(each)), None)
    if trigger is None:
        raise _invalid(f"no trigger begins {shown(begin)}")
    return {"begin": begin, "schema": schema, "end": end, "trigger": trigger}


def _objects(owner: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    items = owner.get(field)
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise _invalid(f"{field} must be a non-empty list of objects")
    return items


def _invalid(problem: str) -> InvalidParameter:
    return InvalidParameter(f"structured_outputs.structural_tag: {problem}", "structured_outputs")
