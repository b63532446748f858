import io
from contextlib import nullcontext

import pytest
from rich.console import Console

from rayinfer.errors import RayinferError
from rayinfer_deployments.cli.chat import converse, read_deltas


class Reader(Console):
    """A console whose reader types the given lines and then Ctrl-D."""

    def __init__(self, *lines):
        super().__init__(file=io.StringIO(), width=100)
        self._lines = list(lines)

    def input(self, prompt=""):
        if not self._lines:
            raise EOFError
        return self._lines.pop(0)

    @property
    def shown(self):
        return self.file.getvalue()


def hold(*lines, system=None, fail_at=None):
    """Converse, and return what the model was asked each time and the console."""
    asked, console = [], Reader(*lines)

    def talk(conversation):
        asked.append([(message["role"], message["content"]) for message in conversation])
        if len(asked) == fail_at:
            raise RayinferError("the engine died")
        yield "an"
        yield "swer [b]"

    converse(nullcontext(talk), system, console)
    return asked, console


def test_each_question_brings_the_conversation_so_far():
    asked, console = hold("one", "two")
    assert asked == [
        [("user", "one")],
        [("user", "one"), ("assistant", "answer [b]"), ("user", "two")],
    ]
    assert console.shown.count("answer [b]") == 2


def test_a_system_message_comes_first_and_survives_a_new_conversation():
    asked, _ = hold("one", "/new", "two", system="be brief")
    assert asked == [[("system", "be brief"), ("user", "one")], [("system", "be brief"), ("user", "two")]]


@pytest.mark.parametrize("word", ["/exit", "/quit"])
def test_the_reader_can_leave(word):
    assert len(hold("one", word, "two")[0]) == 1


def test_an_empty_line_asks_nothing():
    assert hold("", "  ")[0] == []


def test_a_failed_answer_is_forgotten_with_its_question():
    asked, console = hold("one", "two", fail_at=1)
    assert asked[1] == [("user", "two")]
    assert "error: the engine died" in console.shown


def test_the_new_text_is_read_out_of_events():
    lines = [
        'data: {"choices": [{"delta": {"role": "assistant"}}]}',
        "",
        ": keep-alive",
        'data: {"choices": [{"delta": {"content": "Par"}}]}',
        'data: {"choices": [{"delta": {"content": "is"}, "finish_reason": "stop"}]}',
        'data: {"choices": [], "usage": {"completion_tokens": 2}}',
        "data: [DONE]",
    ]
    assert list(read_deltas(iter(lines))) == ["Par", "is"]


def test_an_error_event_ends_the_answer():
    with pytest.raises(RayinferError, match="engine died"):
        list(read_deltas(iter(['data: {"error": {"message": "engine died"}}'])))
