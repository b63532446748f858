"""Lookup of API keys by the digest of the secret."""

import hmac
from collections.abc import Iterable, Mapping

from rayinfer.access.api_key import ApiKey, digest_of


class KeyTable:
    """Keys by digest; changes replace it, so that a lookup needs no lock."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self.by_id: Mapping[str, ApiKey] = {key.key_id: key for key in keys}
        self._by_digest = {key.digest: key for key in self.by_id.values() if key.revoked_s is None}

    def find(self, secret: str) -> ApiKey | None:
        """Return the key of a secret; None if there is none, or it is revoked.

        The table is searched by digest, so the time says nothing about a secret; the comparison is constant-time too.
        """
        digest = digest_of(secret)
        key = self._by_digest.get(digest)
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None

    def changed(self, added: Iterable[ApiKey], removed: Iterable[str]) -> "KeyTable":
        """Return a table with keys added or replaced, and others removed by id."""
        gone = set(removed)
        keys = {key_id: key for key_id, key in self.by_id.items() if key_id not in gone}
        return KeyTable((keys | {key.key_id: key for key in added}).values())

    def tenant_weights(self) -> dict[str, float]:
        """Return the weights of tenants; the greatest where keys of one tenant differ."""
        weights: dict[str, float] = {}
        for key in self.by_id.values():
            if key.revoked_s is None:
                weights[key.tenant] = max(key.weight, weights.get(key.tenant, 0.0))
        return weights
