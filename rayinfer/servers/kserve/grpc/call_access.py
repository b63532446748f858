"""Access of clients over gRPC: the keys, tenants and access log of HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass

from rayinfer.access.access_control import AccessControl
from rayinfer.servers.access.access_log import AccessLog
from rayinfer.servers.caller import ANYONE, Caller, caller_of_headers


@dataclass(frozen=True, slots=True)
class CallAccess:
    """Keys and access log of a server."""

    keys: AccessControl | None = None  # None: the service is open
    log: AccessLog | None = None
    trusts_tenant_header: bool = False

    def authenticate(self, headers: Mapping[str, str], client_address: str) -> Caller:
        """Return a caller by its key, and by its tenant where that header is trusted; raises RayinferError."""
        caller = ANYONE if self.keys is None else self.keys.authenticator.authenticate(headers, client_address)
        return caller_of_headers(headers, caller) if self.trusts_tenant_header else caller

    def admit(self, caller: Caller) -> None:
        """Count a request against the limit of its key; raises RateLimited."""
        if self.keys is not None:
            self.keys.authenticator.admit(caller)

    def limits_left(self, caller: Caller) -> list[tuple[str, str]]:
        """Return what is left of a key's limits, as HTTP's headers state it."""
        if self.keys is None or caller.key is None:
            return []
        return [(name.decode(), value.decode()) for name, value in self.keys.limits.headers(caller.key)]


OPEN_CALL_ACCESS = CallAccess()
