"""`rayinfer chat`: a conversation in the terminal, with an engine in this process or a service over HTTP."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console

from rayinfer.config import DEFAULT_MODEL
from rayinfer.errors import RayinferError
from rayinfer_deployments.cli.failures import in_one_line, one_line
from rayinfer_deployments.cli.options.config_options import with_engine_options
from rayinfer_deployments.cli.options.sampling_options import with_sampling_options
from rayinfer_deployments.cli.plain_text import plain_text

LEAVE = {"/exit", "/quit"}
FORGET = "/new"

Message = dict[str, str]
StreamChat = Callable[[list[Message]], Iterator[str]]  # from a conversation to the pieces of the next message


@in_one_line
@with_engine_options
@with_sampling_options(max_tokens=512)
def chat(
    model: Annotated[
        str | None, typer.Argument(help=f"the model (default: {DEFAULT_MODEL}, or the service's first)")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="use this OpenAI-compatible service instead of an engine in this process")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="the service's key", envvar="RAYINFER_API_KEY")] = None,
    system: Annotated[str | None, typer.Option(help="instructions that precede the conversation")] = None,
    sampling: dict[str, Any] = {},  # noqa: B006 - filled by with_sampling_options
    engine_settings: dict[str, Any] = {},  # noqa: B006 - filled by with_engine_options
) -> None:
    """Chat with a model; /new forgets the conversation, /exit or Ctrl-D leaves."""
    if base_url is None:
        opened = local_chat(model or DEFAULT_MODEL, sampling, engine_settings)
    elif engine_settings:
        raise RayinferError(f"--base-url excludes engine settings: {', '.join(engine_settings)}")
    else:
        opened = remote_chat(base_url, model, api_key, sampling)
    converse(opened, system, Console())


def converse(opened: AbstractContextManager[StreamChat], system: str | None, console: Console) -> None:
    """Read questions and write replies until the user quits; a failed reply is dropped with its question."""
    start = [{"role": "system", "content": system}] if system else []
    with opened as stream_chat:
        conversation = list(start)
        while (question := _read_line(console)) is not None:
            if not question:
                continue
            if question == FORGET:
                conversation = list(start)
                continue
            conversation.append({"role": "user", "content": question})
            try:
                reply = _show(stream_chat(conversation), console)
            except RayinferError as error:
                console.print(f"error: {one_line(error)}", style="red", markup=False)
                conversation.pop()
                continue
            conversation.append({"role": "assistant", "content": reply})


@contextmanager
def local_chat(model: str, sampling: dict[str, Any], engine_settings: dict[str, Any]) -> Iterator[StreamChat]:
    """Chat with an engine in this process."""
    from rayinfer.llm import LLM
    from rayinfer.sampling_params import SamplingParams

    SamplingParams(**sampling)  # refuses wrong values before the model is loaded
    with LLM(model, **engine_settings) as llm:
        params = replace(llm.get_default_sampling_params(), **sampling)

        def stream_chat(conversation: list[Message]) -> Iterator[str]:
            for output in llm.stream(conversation, params):
                yield output.outputs[0].text

        yield stream_chat


@contextmanager
def remote_chat(
    base_url: str, model: str | None, api_key: str | None, sampling: dict[str, Any]
) -> Iterator[StreamChat]:
    """Chat with an OpenAI-compatible service."""
    import httpx

    url = base_url.rstrip("/").removesuffix("/v1") + "/v1"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    with httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(600.0, connect=5.0)) as client:

        def stream_chat(conversation: list[Message]) -> Iterator[str]:
            body = {"model": name, "messages": conversation, "stream": True, **sampling}
            try:
                with client.stream("POST", "/chat/completions", json=body) as response:
                    _refuse_errors(response)
                    yield from read_deltas(response.iter_lines())
            except httpx.HTTPError as error:
                raise RayinferError(f"{url}: {error}") from None

        try:
            response = client.get("/models")
            _refuse_errors(response)
            name = model or response.json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise RayinferError(f"no OpenAI-compatible service answers at {url}: {one_line(error)}") from None
        yield stream_chat


def read_deltas(lines: Iterator[str]) -> Iterator[str]:
    """Read the new text out of a chat completion's server-sent events; raises RayinferError for an error event."""
    for line in lines:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        event = json.loads(data)
        if error := event.get("error"):
            raise RayinferError(str(error.get("message", error) if isinstance(error, dict) else error))
        for choice in event.get("choices", []):
            if text := choice["delta"].get("content"):
                yield text


def _refuse_errors(response: Any) -> None:
    if response.status_code != 200:
        text = response.read().decode(errors="replace")[:500]
        with suppress(ValueError, LookupError, TypeError):
            text = json.loads(text)["error"]["message"]
        raise RayinferError(f"{response.status_code}: {text}")


def _read_line(console: Console) -> str | None:
    try:
        line = console.input("[bold]> [/bold]").strip()
    except EOFError:
        console.print()
        return None
    return None if line in LEAVE else line


def _show(pieces: Iterator[str], console: Console) -> str:
    reply = ""
    for piece in pieces:
        reply += piece
        shown = plain_text(piece) if console.is_terminal else piece
        console.print(shown, end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    return reply
