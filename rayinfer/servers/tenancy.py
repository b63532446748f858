"""The tenant of a request."""

import re

from fastapi import FastAPI, Request

from rayinfer.errors import InvalidParameter

TENANT_HEADER = "x-tenant-id"
MAX_TENANT_CHARS = 128
_TENANT = re.compile(rf"[A-Za-z0-9._:@/-]{{1,{MAX_TENANT_CHARS}}}")


def trust_tenant_header(app: FastAPI, is_trusted: bool) -> None:
    """Trust the tenant header of requests; only for services that are behind a gateway that sets it."""
    app.state.trusts_tenant_header = is_trusted


def tenant_of(request: Request) -> str:
    """Return a request's tenant, "" for none; raises InvalidParameter for a malformed name.

    Tenants have shares of their own and share no cached prefix, so a name is taken as it is or not at all.
    """
    if not request.app.state.trusts_tenant_header:
        return ""
    names = request.headers.getlist(TENANT_HEADER)
    if not names:
        return ""
    if len(names) > 1 or not _TENANT.fullmatch(names[0]):
        raise InvalidParameter(
            f"the header {TENANT_HEADER} must be one name of 1 to {MAX_TENANT_CHARS} letters, digits and . _ : @ / -",
            TENANT_HEADER,
        )
    return names[0]
