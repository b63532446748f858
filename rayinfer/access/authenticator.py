"""Authentication of requests by API keys, the same for HTTP and gRPC."""

import time
from collections.abc import Callable, Mapping

from rayinfer.access.api_key import MAX_SECRET_CHARS, ApiKey
from rayinfer.access.caller import STRANGER, Caller
from rayinfer.access.failed_keys import FailedKeys
from rayinfer.access.key_table import KeyTable
from rayinfer.access.rate_limits import RateLimits
from rayinfer.errors import AuthenticationFailed, NotReady, RateLimited

AUTHORIZATION = "authorization"
KEY_HEADERS = ("x-api-key", "api-key")
BEARER = "bearer"


class Authenticator:
    """Authenticator over keys that may change while it is used."""

    def __init__(self, limits: RateLimits, failed: FailedKeys | None = None) -> None:
        self.keys: KeyTable | None = None  # not known yet
        self.last_used_s: dict[str, float] = {}  # by key id, since 1970: what is not yet reported
        self._limits = limits
        self._failed = FailedKeys() if failed is None else failed

    def identify(self, headers: Mapping[str, str], client_address: str) -> Caller:
        """Return a request's caller, and count the request against the key's limit.

        Raises AuthenticationFailed, RateLimited, and NotReady before the keys are known.
        """
        caller = self.authenticate(headers, client_address)
        self.admit(caller)
        return caller

    def admit(self, caller: Caller) -> None:
        """Count a request against the limit of its key; raises RateLimited."""
        if caller.key is not None:
            self._limits.admit_request(caller.key)

    def authenticate(self, headers: Mapping[str, str], client_address: str) -> Caller:
        """Return a request's caller; raises AuthenticationFailed, RateLimited or NotReady."""
        if self.keys is None:
            raise NotReady("The service has not read its keys yet.")
        secret = secret_in(headers.get)
        if secret is None:
            raise AuthenticationFailed(
                "This service needs an API key: send it as `Authorization: Bearer KEY`.", None, "missing_api_key"
            )
        key = self._find(secret)
        if key is None:
            self._failed.record(client_address)
            raise AuthenticationFailed("The API key is not valid.")
        self.last_used_s[key.key_id] = time.time()
        return Caller(tenant=key.tenant, key=key)

    def recognize(self, headers: Mapping[str, str], client_address: str) -> Caller:
        """Return the caller of a request that needs no key; a stranger without a valid one."""
        if secret_in(headers.get) is None:
            return STRANGER
        try:
            return self.authenticate(headers, client_address)
        except (AuthenticationFailed, RateLimited, NotReady):
            return STRANGER

    def _find(self, secret: str) -> ApiKey | None:
        if self.keys is None or len(secret) > MAX_SECRET_CHARS:
            return None
        return self.keys.find(secret)


def secret_in(header: Callable[[str], str | None]) -> str | None:
    """Return the secret that a request's headers carry; None if there is none."""
    scheme, _, secret = (header(AUTHORIZATION) or "").partition(" ")
    if scheme.lower() == BEARER and (secret := secret.strip()):
        return secret
    return next((value for name in KEY_HEADERS if (value := (header(name) or "").strip())), None)
