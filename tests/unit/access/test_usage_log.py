import signal
import subprocess
import sys
from pathlib import Path

from rayinfer.access.usage import Usage, UsageKey, UsageRow, described
from rayinfer.access.usage_log import UsageLog

WRITER = """
import sys
from pathlib import Path
from rayinfer.access.usage import Usage, UsageKey, UsageRow
from rayinfer.access.usage_log import UsageLog

log = UsageLog(Path(sys.argv[1]))
keys = [UsageKey("2026-01-01", key, "tiny") for key in map(str, range(300))]
for sequence in range(1, 1_000_000):
    log.record("router", sequence, [UsageRow(key, Usage(1, 2, 0, 3, 0.5)) for key in keys])
    print(sequence, flush=True)
"""


def test_what_was_recorded_survives_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    for _ in range(2):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        for line in writer.stdout:
            if int(line) == 20:
                break
        writer.send_signal(signal.SIGKILL)
        recorded = max(map(int, writer.stdout.read().split()), default=20)
        assert writer.wait() == -signal.SIGKILL

        log = UsageLog(path)
        first, *others = log.rows()
        # The last batch may have been committed before its line was printed; no batch counts for some keys only.
        assert {other.usage for other in others} == {first.usage}
        assert first.usage in [Usage(n, 2 * n, 0, 3 * n, 0.5 * n) for n in (recorded, recorded + 1)]
        log.record("router", recorded, [UsageRow(UsageKey("2026-01-01", "0", "tiny"), Usage(1))])  # sent again
        assert log.rows()[0].usage == first.usage
        log.close()
        path.unlink()
        for left in path.parent.glob("usage.sqlite-*"):
            left.unlink()


def test_the_log_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "usage.sqlite"
    log = UsageLog(path)
    log.record("router", 1, [UsageRow(UsageKey("2026-01-01", "a", "tiny"), Usage(1))])
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    log.close()


def test_usage_has_a_cost_by_the_engines_time() -> None:
    row = UsageRow(UsageKey("2026-01-01", "a", "tiny"), Usage(1, 10, 4, 5, 1800.0))
    (shown,) = described([row], {"a": "alice"}, 3.0)
    assert (shown["key"], shown["engine_seconds"], shown["cost"]) == ("alice", 1800.0, 1.5)
