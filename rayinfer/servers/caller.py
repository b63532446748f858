"""The context of a request: its identity, its caller, and what the access log records of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastapi import FastAPI, Request

from rayinfer.access.caller import Caller as Caller
from rayinfer.errors import InvalidParameter, UnknownModel
from rayinfer.servers.access.request_record import RequestRecord
from rayinfer.servers.request_boundary import RequestIdentity
from rayinfer.servers.served_model import ServedModel, Task, find_model

TENANT_HEADER = "x-tenant-id"
MAX_TENANT_CHARS = 128
_TENANT = re.compile(rf"[A-Za-z0-9._:@/-]{{1,{MAX_TENANT_CHARS}}}")


ANYONE = Caller()  # where no key is needed


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Identity and caller of a request, known before its body is read."""

    identity: RequestIdentity
    caller: Caller
    record: RequestRecord | None = None  # where an access log is kept
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    server: tuple[str, int | None] | None = None  # address and port that the request came to
    priority: int | None = None  # of a row of a batch, in place of the request's own

    @property
    def is_batch_row(self) -> bool:
        """Whether it is a row of a batch."""
        return self.priority is not None


def request_context(request: Request) -> RequestContext:
    """Return the context of an HTTP request; raises InvalidParameter for a malformed tenant name."""
    record = getattr(request.state, "record", None)
    server = request.scope.get("server")
    priority = getattr(request.state, "priority", None)
    return RequestContext(request.state.identity, caller_of(request), record, request.headers, server, priority)


def trust_tenant_header(app: FastAPI, is_trusted: bool) -> None:
    """Trust the tenant header of requests; only for services that are behind a gateway that sets it."""
    app.state.trusts_tenant_header = is_trusted


def caller_of(request: Request) -> Caller:
    """Return a request's caller; raises InvalidParameter for a malformed tenant name.

    The trusted header's tenant counts instead of the key's. Tenants have shares of their own and share no cached
    prefix, so a name is taken as it is or not at all.
    """
    names = request.headers.getlist(TENANT_HEADER) if request.app.state.trusts_tenant_header else []
    return _with_tenant(recognized_caller(request), names)


def recognized_caller(request: Request) -> Caller:
    """Return the caller of a request that is answered without a key too, whatever its tenant header says."""
    caller: Caller = getattr(request.state, "caller", ANYONE)
    return caller


def caller_of_headers(headers: Mapping[str, str], caller: Caller) -> Caller:
    """Return the caller of a call whose tenant header is trusted; raises InvalidParameter for a malformed name."""
    return _with_tenant(caller, [headers[TENANT_HEADER]] if TENANT_HEADER in headers else [])


def _with_tenant(caller: Caller, names: Sequence[str]) -> Caller:
    if not names:
        return caller
    if len(names) > 1 or not _TENANT.fullmatch(names[0]):
        raise InvalidParameter(
            f"the header {TENANT_HEADER} must be one name of 1 to {MAX_TENANT_CHARS} letters, digits and . _ : @ / -",
            TENANT_HEADER,
        )
    return replace(caller, tenant=names[0])


def usable_models(request: Request, models: Mapping[str, ServedModel]) -> Mapping[str, ServedModel]:
    """Return the models that the caller may use."""
    caller = caller_of(request)
    if caller.key is None or caller.key.limits.models is None:
        return models
    return {name: model for name, model in models.items() if caller.may_use(name)}


def find_usable_model(
    request: Request, models: Mapping[str, ServedModel], name: str | None, *tasks: Task
) -> ServedModel:
    """Look up a model that the caller may use and that does one of the tasks; see `find_model`.

    Raises UnknownModel, InvalidParameter, TaskNotServed or NotReady, which name no other models.
    """
    usable, caller = usable_models(request, models), caller_of(request)
    try:
        if models and not usable:
            raise UnknownModel("The caller may use no model.", "model")
        return find_model(usable, name, *tasks)
    except UnknownModel as error:
        raise hide_other_models(error, caller) from None


def hide_other_models(error: UnknownModel, caller: Caller) -> UnknownModel:
    """Return the error without the names of models, where the caller may not use all of them."""
    if caller.key is None or caller.key.limits.models is None:
        return error
    return UnknownModel("The model does not exist, or the API key does not permit it.", error.param, error.code)
