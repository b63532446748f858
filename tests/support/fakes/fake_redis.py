"""Connection to a Redis in this process that may fail, freeze or answer with garbage."""

import asyncio


class FakeRedis:
    """A `redis_cache.Connection`; it counts its commands."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.seconds_to_live: list[int] = []
        self.reads: list[int] = []  # their numbers of names
        self.writes: list[int] = []
        self.error: Exception | None = None
        self.is_frozen = False
        self.is_full = False

    async def get_all(self, names):
        self.reads.append(len(names))
        await self._arrive()
        return [self.values.get(name) for name in names]

    async def set_all(self, values):
        self.writes.append(len(values))
        await self._arrive()
        if self.is_full:
            return len(values)
        for name, value, lives_s in values:
            self.values[name] = value
            self.seconds_to_live.append(lives_s)
        return 0

    async def close(self):
        pass

    async def _arrive(self):
        if self.error is not None:
            raise self.error
        if self.is_frozen:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
