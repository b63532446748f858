"""Checks of `Host` and `Origin`: pages of other sites may not use the service through their visitors' browsers.

A page can send requests to any address (CSRF), and a site's own name can be made to lead to this machine (DNS
rebinding). Both show in headers that browsers set and pages cannot change.
"""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rayinfer.access.api_key import Scope as KeyScope
from rayinfer.errors import PermissionDenied
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.access.open_paths import READING_METHODS, route_path, scope_of
from rayinfer.servers.error_formats import error_format_of
from rayinfer.servers.error_responses import error_response, refusal_reason

SAFE_METHODS = (*READING_METHODS, "OPTIONS")
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
FOREIGN_SITES = ("cross-site", "same-site")


@dataclass(frozen=True, kw_only=True)
class OriginPolicy:
    """Names and web pages from which a service may be used.

    Addresses, `localhost` and the machine's own name are always allowed as `Host`: no other site has them.
    """

    cors_origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()  # more names of the service; * for all
    is_local: bool = False  # whether it listens on loopback only: then every request must name it so
    has_keys: bool = False  # which no browser sends by itself

    def refusal(self, method: str, path: str, headers: Headers, client: str) -> PermissionDenied | None:
        """Return why a request is refused; None where it is not."""
        host, origin = headers.get("host", ""), headers.get("origin")
        is_change = method not in SAFE_METHODS
        is_allowed_page = origin is not None and bool({origin, "*"}.intersection(self.cors_origins))
        names_service = not host or self.has_keys or is_allowed_page or self._is_known(_name_of(host))
        if not names_service and (self.is_local or (is_change and origin is not None)):
            return PermissionDenied(
                f"The host {host!r:.200} is no name of this service: allow it with --allowed-host, or use the address.",
                None,
                "host_not_allowed",
            )
        if is_change and not is_allowed_page and not self._is_own(origin, host, headers.get("sec-fetch-site", "")):
            pages = "other sites" if origin is None else f"{origin!r:.200}"
            return PermissionDenied(
                f"Web pages of {pages} may not use this service: allow them with --cors-origin.",
                None,
                "origin_not_allowed",
            )
        if is_change and not self.has_keys and scope_of(path) is KeyScope.OPERATE and not is_here(client, headers):
            return PermissionDenied(
                "A service without API keys is operated from its own machine only: make a key with the scope operate "
                "(rayinfer keys new NAME --scope operate).",
                None,
                "operator_not_allowed",
            )
        return None

    @staticmethod
    def _is_own(origin: str | None, host: str, site: str) -> bool:
        """Return whether a change comes from the service's own page, or from no page at all."""
        if origin is None:
            return site not in FOREIGN_SITES
        scheme, _, address = origin.lower().partition("://")
        port = DEFAULT_PORTS.get(scheme, "")
        return bool(address) and host.lower().removesuffix(port) == address.removesuffix(port)

    def _is_known(self, name: str) -> bool:
        if name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return True
        return "*" in self.allowed_hosts or name in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        machine = socket.gethostname().lower()
        return frozenset({machine, f"{machine}.local", *(name.lower() for name in self.allowed_hosts)})


ANY_NAME = OriginPolicy()


class OriginCheck:
    """ASGI middleware that applies an `OriginPolicy` before anything of a body is read."""

    def __init__(self, app: ASGIApp, *, policy: OriginPolicy, metrics: ServiceMetrics) -> None:
        self._app = app
        self._policy = policy
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            client = scope.get("client")
            address = client[0] if client else ""
            error = self._policy.refusal(scope["method"], route_path(scope), Headers(scope=scope), address)
            if error is not None:
                self._metrics.request_refused(refusal_reason(error))
                await error_response(error, error_format_of(scope))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_loopback(address: str) -> bool:
    """Return whether an address, or `localhost`, is reached from its own machine only."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def is_here(client: str, headers: Headers) -> bool:
    """Return whether a request comes from this machine, through a proxy on it as well."""
    forwarded = headers.get("x-forwarded-for", "").partition(",")[0].strip()
    return is_loopback(client) and (not forwarded or is_loopback(forwarded))


def _name_of(host: str) -> str:
    """Return the name or address in a `Host` header, without its port."""
    host = host.strip().lower().rstrip(".")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
