"""The caller of a request: whose share, prefix cache and limits it uses."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request

from rayinfer.errors import InvalidParameter
from rayinfer.servers.request_boundary import RequestIdentity

TENANT_HEADER = "x-tenant-id"
MAX_TENANT_CHARS = 128
_TENANT = re.compile(rf"[A-Za-z0-9._:@/-]{{1,{MAX_TENANT_CHARS}}}")


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request, as far as the service knows it."""

    tenant: str = ""  # "" for none
    cache_salt: str = ""  # of its requests that name none


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Identity and caller of a request, known before its body is read."""

    identity: RequestIdentity
    caller: Caller


def request_context(request: Request) -> RequestContext:
    """Return the context of an HTTP request; raises InvalidParameter for a malformed tenant name."""
    return RequestContext(request.state.identity, caller_of(request))


def trust_tenant_header(app: FastAPI, is_trusted: bool) -> None:
    """Trust the tenant header of requests; only for services that are behind a gateway that sets it."""
    app.state.trusts_tenant_header = is_trusted


def caller_of(request: Request) -> Caller:
    """Return a request's caller; raises InvalidParameter for a malformed tenant name.

    Tenants have shares of their own and share no cached prefix, so a name is taken as it is or not at all.
    """
    return _caller_named(request.headers.getlist(TENANT_HEADER) if request.app.state.trusts_tenant_header else [])


def caller_of_headers(headers: Mapping[str, str]) -> Caller:
    """Return the caller of a call whose tenant header is trusted; raises InvalidParameter for a malformed name."""
    return _caller_named([headers[TENANT_HEADER]] if TENANT_HEADER in headers else [])


def _caller_named(names: Sequence[str]) -> Caller:
    if not names:
        return Caller()
    if len(names) > 1 or not _TENANT.fullmatch(names[0]):
        raise InvalidParameter(
            f"the header {TENANT_HEADER} must be one name of 1 to {MAX_TENANT_CHARS} letters, digits and . _ : @ / -",
            TENANT_HEADER,
        )
    return Caller(names[0])
