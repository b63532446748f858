"""Connection to a Redis in this process that may fail, freeze or answer with garbage."""

import asyncio

from rayinfer.prediction_cache.redis_claims import Claimed


class FakeRedis:
    """A `redis_cache.Connection`; it counts its commands."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.seconds_to_live: list[int] = []
        self.reads: list[int] = []  # their numbers of names
        self.writes: list[int] = []
        self.claimed: dict[str, bytes] = {}  # beside the values, though Redis has them all in one place
        self.claims: list[int] = []  # their numbers of names
        self.num_renewed = 0
        self.error: Exception | None = None
        self.is_frozen = False
        self.is_full = False

    async def get_all(self, names):
        self.reads.append(len(names))
        await self._arrive()
        return [self.values.get(name, self.claimed.get(name)) for name in names]

    async def claim_all(self, claims, lives_ms):
        self.claims.append(len(claims))
        await self._arrive()
        if self.is_full:
            return [Claimed(True, self.values.get(claim.item)) for claim in claims]
        found = [Claimed(claim.name not in self.claimed, self.values.get(claim.item)) for claim in claims]
        self.claimed |= {
            claim.name: claim.value for claim, claimed in zip(claims, found, strict=True) if claimed.is_free
        }
        return found

    async def renew_all(self, names, lives_ms):
        self.num_renewed += len(names)

    async def remove_all(self, names):
        await self._arrive()
        for name in names:
            self.claimed.pop(name, None)

    async def set_all(self, values, removed=()):
        self.writes.append(len(values))
        await self._arrive()
        if self.is_full:
            return len(values)
        for name, value, lives_s in values:
            self.values[name] = value
            self.seconds_to_live.append(lives_s)
        for name in removed:
            self.claimed.pop(name, None)
        return 0

    async def close(self):
        pass

    async def _arrive(self):
        if self.error is not None:
            raise self.error
        if self.is_frozen:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
