"""Deployment of an application behind a port of this machine, with progress until it is ready."""

import logging
import re
import time
from collections.abc import Callable

import httpx
from ray import serve
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, LoggingConfig

from rayinfer.errors import ConfigError, ModelLoadError, ModelNotFound, RayinferError, UnsupportedArchitecture
from rayinfer_deployments.cluster.service_record import service_url

POLL_S = 0.05
READY_S = 0.5
STATUS_S = 1.0  # Serve's account of an application costs it and us tens of milliseconds, which the engines' start lacks
SILENT_PORT_S = 15.0  # how long Serve may call the application running while its port does not answer
REASON_LIMIT = 500  # characters of a failure that are shown
LOGGING = LoggingConfig(enable_access_log=False, log_level="WARNING")

FAILURE = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?P<type>[A-Za-z_]\w*(?:Error|NotFound|Architecture|Exception|Dead)): "
)  # a traceback's last line
EXPLAINED = {kind.__name__: kind for kind in (ConfigError, ModelLoadError, ModelNotFound, UnsupportedArchitecture)}


class ServiceFailed(RayinferError):
    """The service did not start; the message gives the reason in one line."""


def deploy(application: serve.Application, name: str, host: str, port: int, *, with_proxy: bool) -> None:
    """Deploy the application, with Serve's HTTP proxy on the address if asked for; does not wait until it is ready."""
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    location = None if with_proxy else ProxyLocation.Disabled
    serve.start(location, http_options=HTTPOptions(host=host, port=port), logging_config=LOGGING)
    redeploy(application, name)


def redeploy(application: serve.Application, name: str, route_prefix: str = "/") -> None:
    """Deploy the application to a running Serve, replacing one of the same name; does not wait."""
    target = serve.RunTarget(application, name=name, route_prefix=route_prefix, logging_config=LOGGING)
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def wait_until_ready(
    name: str,
    host: str,
    port: int,
    check: Callable[[], None],
    on_progress: Callable[[str], None],
    *,
    has_tls: bool = False,
    is_ready: Callable[[], bool] | None = None,
) -> None:
    """Return once `/ready` answers 200; `on_progress` is called with what is still missing, `check` may raise.

    Where the port asks for certificates that this process lacks, `is_ready` finds out instead.
    When Serve gives the application up, it raises the engine's ConfigError or ModelLoadError, or else ServiceFailed.
    """
    silent_since: float | None = None
    url = service_url(host, port, has_tls=has_tls)
    overview, asked_s = None, time.monotonic()
    with httpx.Client(base_url=url, timeout=5.0, trust_env=False, verify=False) as client:
        while True:
            check()
            if (now := time.monotonic()) - asked_s > STATUS_S:
                overview, asked_s = serve.status().applications.get(name), now
            if overview is not None and overview.status == ApplicationStatus.DEPLOY_FAILED:
                raise start_error(overview)
            if is_ready is not None:
                if is_ready():
                    return
                time.sleep(READY_S)
                continue
            response = _ask(client)
            if response is not None and response.status_code == 200:
                return
            if response is not None and (reason := _reason(response)):
                on_progress(reason)
            is_silent = response is None and overview is not None and overview.status == ApplicationStatus.RUNNING
            silent_since = (silent_since or now) if is_silent else None
            if silent_since is not None and now - silent_since > SILENT_PORT_S:
                raise ServiceFailed(f"nothing answers on {url}: this Ray's Serve listens on another address")
            time.sleep(POLL_S)


def start_error(overview: ApplicationStatusOverview) -> RayinferError:
    """Make the error of a failed start: of the cause's type where that names what to change, else ServiceFailed."""
    match = FAILURE.match(_last_failure(overview))
    kind = EXPLAINED.get(match["type"], ServiceFailed) if match else ServiceFailed
    return kind(failure_of(overview))


def failure_of(overview: ApplicationStatusOverview) -> str:
    """Find the cause in Serve's status message: the last line of the innermost traceback, without its type."""
    return FAILURE.sub("", _last_failure(overview))[:REASON_LIMIT]


def _last_failure(overview: ApplicationStatusOverview) -> str:
    messages = [deployment.message for deployment in overview.deployments.values() if deployment.message]
    lines = [line.strip() for line in "\n".join([overview.message, *messages]).splitlines() if line.strip()]
    failures = [line for line in lines if FAILURE.match(line)]
    return failures[-1] if failures else (lines[-1] if lines else "Serve gives no reason")


def _ask(client: httpx.Client) -> httpx.Response | None:
    try:
        return client.get("/ready")
    except httpx.TransportError:
        return None


def _reason(response: httpx.Response) -> str | None:
    """Read what `/ready` reports as missing; None when Serve's proxy answered, which knows no application yet."""
    try:
        answer = response.json()
        if answer["ready"] is False and "reasons" not in answer:
            return "not ready"  # more is for callers with keys only
        reasons = answer["reasons"]
    except (ValueError, LookupError, TypeError):
        return None
    return "; ".join(f"{model}: {reason}" for model, reason in reasons.items())
