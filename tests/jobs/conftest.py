"""Table of the checks of offline jobs, printed at the end of `make test-jobs`."""

from collections import defaultdict
from pathlib import Path


def pytest_terminal_summary(terminalreporter):
    """Print how many cases of each file passed, and what they took."""
    files = defaultdict(lambda: {"passed": 0, "failed": 0, "error": 0, "seconds": 0.0})
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            files[Path(report.fspath).stem.removeprefix("test_").replace("_", " ")][outcome] += 1
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                files[Path(report.fspath).stem.removeprefix("test_").replace("_", " ")]["seconds"] += report.duration
    terminalreporter.section("offline jobs")
    terminalreporter.line(f"{'check':<20} {'passed':>7} {'failed':>7} {'errors':>7} {'seconds':>8}")
    for name, row in sorted(files.items()):
        counts = f"{row['passed']:>7} {row['failed']:>7} {row['error']:>7}"
        terminalreporter.line(f"{name:<20} {counts} {row['seconds']:>8.1f}")
