import io

from rayinfer.optimization.progress_line import progress_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_one_line_that_is_written_again(monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with progress_line("weights", 3) as advance:
        advance()
        advance()
    shown = terminal.getvalue()
    assert [line.partition(",")[0] for line in shown.split("\r")[1:]] == ["weights: 1 of 3", "weights: 2 of 3"]
    assert shown.endswith(" s\n")


def test_elsewhere_nothing_is_shown(monkeypatch):
    monkeypatch.setattr("sys.stderr", file := io.StringIO())
    with progress_line("weights", 3) as advance:
        advance()
    assert file.getvalue() == ""
