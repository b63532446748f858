from pathlib import Path

import pytest

from rayinfer.access.access_control import AccessControl
from rayinfer.access.access_owner import AccessOwner
from rayinfer.access.key_file import KeyFile
from rayinfer.access.owner_messages import NamedUsage, OwnerUpdate, RouterReport


class Clock:
    """Clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class LocalOwner:
    """An owner in this process that can be away, and that can lose its answers."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self.clock = path, clock
        self.owner = AccessOwner(path, clock=clock)
        self.is_away = self.loses_answers = False
        self.reports: list[RouterReport] = []

    def restart(self) -> None:
        """End the owner and start another."""
        self.owner.usage_log.close()
        self.owner = AccessOwner(self.path, clock=self.clock)

    async def sync(self, report: RouterReport) -> OwnerUpdate:
        """Call the owner."""
        if self.is_away:
            raise ConnectionError("away")
        self.reports.append(report)
        update = self.owner.sync(report)
        if self.loses_answers:
            raise ConnectionError("lost")
        return update

    async def usage(self, first_day: str, key_id: str | None) -> NamedUsage:
        """Call the owner."""
        return self.owner.usage(first_day, key_id)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def key_file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys" / "api-keys.jsonl")


@pytest.fixture
def shared(key_file: KeyFile, clock: Clock) -> LocalOwner:
    return LocalOwner(key_file.path, clock)


@pytest.fixture
def routers(shared: LocalOwner, clock: Clock) -> list[AccessControl]:
    return [AccessControl(name, shared, clock=clock) for name in ("one", "two")]
