"""The command `rayinfer top`."""

import json
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayinfer.errors import RayinferError
from rayinfer_deployments.cli.failures import in_one_line

if TYPE_CHECKING:
    from rayinfer_deployments.cli.top.history import ModelHistory

CONNECT_S = 5.0
SAMPLE_S = 5.0  # within which a sample comes: they come once a second
RETRY_S = 1.0
ONCE_SAMPLES = 2  # two, for rates
MAX_LINE_BYTES = 2**24
MAX_ERROR = 300


@in_one_line
def top(
    base_url: Annotated[
        str | None, typer.Option(help="address of the service (default: the only service of this machine)")
    ] = None,
    port: Annotated[int | None, typer.Option(help="port of the service on this machine")] = None,
    api_key: Annotated[str | None, typer.Option(help="the service's key", envvar="RAYINFER_API_KEY")] = None,
    once: Annotated[bool, typer.Option("--once", help="print the figures once and end")] = False,
) -> None:
    """Show a service at work in the terminal: rates, latencies, queue, engines and what happens to them.

    A service of `serve deploy`, or on another machine, is named by --base-url. Ctrl-C ends it.
    """
    from rich.console import Console
    from rich.live import Live

    from rayinfer_deployments.cli.top.screen import screen

    url = _url(base_url, port)
    console, models = Console(highlight=False), dict[str, "ModelHistory"]()
    if once or not console.is_terminal:
        for sample in islice(follow(url, api_key), ONCE_SAMPLES):
            if isinstance(sample, str):
                raise RayinferError(f"{url}: {sample.partition(';')[0]}")
            _take(models, sample)
        console.print(screen(url, models, "", console.width))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for found in follow(url, api_key):
            notice = found if isinstance(found, str) else ""
            if not isinstance(found, str):
                _take(models, found)
            live.update(screen(url, models, notice, console.width), refresh=True)


def follow(url: str, api_key: str | None) -> Iterator[Mapping[str, Any] | str]:
    """Yield samples, and while the service does not answer why; raises RayinferError where the key is refused."""
    import httpx

    while True:
        try:
            yield from _samples(url, api_key)
        except httpx.TransportError as error:
            yield f"the service does not answer ({type(error).__name__}); connecting again"
            time.sleep(RETRY_S)


def _url(base_url: str | None, port: int | None) -> str:
    if base_url is not None:
        return base_url.rstrip("/").removesuffix("/v1")
    from rayinfer_deployments.cluster.service_record import find_service

    return find_service(port).base_url


def _take(models: "dict[str, ModelHistory]", sample: Mapping[str, Any]) -> None:
    from rayinfer_deployments.cli.top.history import ModelHistory

    for name in models.keys() - sample["models"].keys():
        del models[name]
    for name, model in sample["models"].items():
        models.setdefault(name, ModelHistory()).add(sample["time_s"], model)


def _samples(url: str, api_key: str | None) -> Iterator[Mapping[str, Any] | str]:
    """Yield the samples of one stream, which the service ends after some seconds, or why it sends none for now."""
    import httpx

    from rayinfer_deployments.cli.plain_text import plain_text

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(SAMPLE_S, connect=CONNECT_S)
    with (
        httpx.Client(trust_env=False, timeout=timeout) as client,
        client.stream("GET", f"{url}/live", headers=headers) as response,
    ):
        if response.is_server_error or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            yield f"the service answers {response.status_code}; connecting again"
            time.sleep(RETRY_S)
            return
        if response.status_code != httpx.codes.OK:
            body = plain_text(response.read().decode(errors="replace"), MAX_ERROR, kept="")
            raise RayinferError(f"{url}/live answers {response.status_code}: {body}")
        for line in response.iter_lines():
            if line.startswith("data: ") and len(line) < MAX_LINE_BYTES:
                yield json.loads(line[6:])
