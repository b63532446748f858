import pytest

from rayinfer_deployments.cli.plain_text import plain_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text\nand a tab\t.", "plain text\nand a tab\t."),
        ("\x1b[31mred\x07", "\\u001b[31mred\\u0007"),
        ("\u202egnp.exe\u2066", "\\u202egnp.exe\\u2066"),
        ("a\rb\x9b1mc\u2028d", "a\\u000db\\u009b1mc\\u2028d"),
        ("Straße 東京 😀", "Straße 東京 😀"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_moves_a_terminal_is_written_out(text, shown):
    assert plain_text(text) == shown


def test_long_texts_are_cut():
    assert plain_text("A" * 1_000_000, 10) == "A" * 9 + "…"
    assert plain_text("a\nb", kept="") == "a\\u000ab"
