import json
import random

import pytest

from rayinfer.tool_calls.answer_parser import AnswerParser, ReasoningTags
from rayinfer.tool_calls.formats import FORMATS
from unit.tool_calls.parsed_answers import Parsed, new_parser, parse
from unit.tool_calls.recordings import RECORDINGS, TOOLS, Recording

recordings = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)


def parts(parsed: Parsed) -> tuple[str, str, list[tuple[str, str]]]:
    return parsed.text, parsed.reasoning, parsed.calls


@recordings
def test_recorded_answers_are_understood(recording: Recording) -> None:
    parsed = parse(new_parser(recording), [recording.answer])
    assert [(name, json.loads(arguments)) for name, arguments in parsed.calls] == list(recording.calls)
    assert (parsed.text, parsed.reasoning) == (recording.text, recording.reasoning)
    assert len(set(parsed.ids)) == len(recording.calls)


@recordings
def test_cuts_change_nothing(recording: Recording) -> None:
    answer = recording.answer
    whole = parts(parse(new_parser(recording), [answer]))
    rng = random.Random(0)
    cuts = [[cut] for cut in range(len(answer))]
    cuts += [sorted(rng.choices(range(len(answer)), k=rng.randrange(2, 20))) for _ in range(50)]
    cuts.append(list(range(len(answer))))
    for places in cuts:
        pieces = [answer[start:end] for start, end in zip([0, *places], [*places, len(answer)], strict=True)]
        assert parts(parse(new_parser(recording), pieces)) == whole, places


@recordings
def test_truncated_answers_lose_nothing(recording: Recording) -> None:
    answer = recording.answer
    for end in range(len(answer)):
        whole, single = parse(new_parser(recording), [answer[:end]]), parse(new_parser(recording), list(answer[:end]))
        assert parts(whole) == parts(single), end
        finished = whole.calls[:-1]
        assert [(name, json.loads(text)) for name, text in finished] == list(recording.calls)[: len(finished)]
        if not whole.calls and not recording.has_tags and recording.format != "harmony":
            assert "".join(whole.text.split()) == "".join(answer[:end].split()), end


def test_text_around_a_cut_call_is_kept() -> None:
    parsed = parse(AnswerParser(FORMATS["hermes"], TOOLS), ['Hi. <tool_call>\n{"name": "no'])
    assert parsed.text == 'Hi. <tool_call>\n{"name": "no'
    parsed = parse(AnswerParser(FORMATS["hermes"], TOOLS), ['<tool_call>{"name": "add", "arguments": {"a": 1'])
    assert parsed.calls == [("add", '{"a": 1')]


@pytest.mark.parametrize("name", FORMATS)
def test_random_outputs_never_raise(name: str) -> None:
    tokens = [marker for each in FORMATS.values() for marker in each.openers]
    tokens += ['{"name": "add", "arguments": {', '"', "\\", "{", "}", "[", "]", "(", ")", ",", ":", ";", " ", "\n", "'"]
    tokens += [
        "add(",
        "add",
        "a=1",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "</tool_call>",
        "call:add{",
        "1e999",
    ]
    tokens += [
        "<think>",
        "</think>",
        "<|message|>",
        "<|channel|>analysis",
        "<|start|>",
        " to=functions.add",
        "é🙂",
        "\0",
    ]
    tokens += ["<tool_call|>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "[ARGS]", "[CALL_ID]", ">", "\ud800", '<|"|>']
    rng = random.Random(name)
    for _ in range(300):
        pieces = rng.choices(tokens, k=rng.randrange(1, 40))
        single = parse(AnswerParser(FORMATS[name], TOOLS, ReasoningTags()), pieces)
        whole = parse(AnswerParser(FORMATS[name], TOOLS, ReasoningTags()), ["".join(pieces)])
        assert parts(single) == parts(whole), pieces


@recordings
def test_damaged_answers_do_not_depend_on_cuts(recording: Recording) -> None:
    rng = random.Random(recording.name)
    for _ in range(60):
        answer = damaged(recording.answer, rng)
        whole = parts(parse(new_parser(recording), [answer]))
        assert parts(parse(new_parser(recording), list(answer))) == whole, answer


def damaged(answer: str, rng: random.Random) -> str:
    for _ in range(rng.randrange(1, 4)):
        start, end = sorted(rng.choices(range(len(answer) + 1), k=2))
        other = rng.choice(RECORDINGS).answer
        at = rng.randrange(len(other))
        answer = rng.choice(
            [
                answer[:start] + answer[min(end, start + 6) :],
                answer[:start] + other[at : at + rng.randrange(1, 40)] + answer[start:],
                answer[:start] + rng.choice("{}[]\"\\'<>|:,;()= \n\0é🙂0-.eE") + answer[start:],
                answer[:end] + answer[start:end] + answer[end:],
            ]
        )
    return answer


def test_what_follows_an_endless_name_is_read_at_any_cut() -> None:
    answer = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" + "x" * 900 + "<｜end▁of▁sentence｜>"
    for pieces in ([answer], list(answer)):
        parsed = parse(AnswerParser(FORMATS["deepseek"], TOOLS), pieces)
        assert parsed.text == answer.removesuffix("<｜end▁of▁sentence｜>")


@pytest.mark.parametrize(
    "text", ["<tool_call>" + "[" * 50_000, "[add(a=" + "[" * 50_000 + "]" * 50_001, "<tool_call>" * 9000]
)
def test_deep_and_repeated_outputs_are_text(text: str) -> None:
    for name in ("hermes", "pythonic", "generic", "qwen3_coder"):
        assert parse(AnswerParser(FORMATS[name], TOOLS), [text]).text == text


def test_line_breaks_in_strings_are_escaped() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": "x\ny"}}</tool_call>'
    ((_, arguments),) = parse(AnswerParser(FORMATS["hermes"], TOOLS), list(text)).calls
    assert json.loads(arguments) == {"a": "x\ny"}


def test_arguments_are_streamed() -> None:
    parser = AnswerParser(FORMATS["hermes"], TOOLS)
    assert parser.add('<tool_call>{"name": "add", "arguments": {"a"') != []
    assert parser.add(": 1, ") != []


def test_reasoning_tokens_are_counted() -> None:
    parser = AnswerParser(None, {}, ReasoningTags(), begins_in_reasoning=True)
    parsed = parse(parser, ["a", "b", "c", "</think>", "\n\n", "x", "y"])
    assert (parsed.reasoning, parsed.text) == ("abc", "xy")
    assert parser.num_reasoning_tokens == 3


def test_answers_without_reasoning_stay_whole() -> None:
    parsed = parse(AnswerParser(None, {}, ReasoningTags()), [" <thi", "s> x </think> "])
    assert (parsed.reasoning, parsed.text) == ("", " <this> x </think> ")


def test_mistral_ids_have_nine_characters() -> None:
    recording = next(each for each in RECORDINGS if each.name == "mistral")
    assert [len(each) for each in parse(new_parser(recording), [recording.answer]).ids] == [9, 9]
