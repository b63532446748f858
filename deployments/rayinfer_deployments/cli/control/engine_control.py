"""Commands on the engines of a running service: `pause`, `resume`, `sleep`, `wake`, `drain`, `reload`."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.control.service_choice import Address, Application, Port, chosen_service
from rayinfer_deployments.cli.failures import in_one_line

CONTROL_S = 150.0
DRAIN_S = 1300.0
RELOAD_S = 700.0
NODE_DEADLINE_S = 600.0

Model = Annotated[str | None, typer.Option(help="only this model's engines (default: those of all models)")]


@in_one_line
def pause(port: Port = None, model: Model = None, address: Address = None, application: Application = None) -> None:
    """Pause the engines: running requests keep their state, and new ones queue."""
    _control(_Where(port, address, application), "pause", model)


@in_one_line
def resume(port: Port = None, model: Model = None, address: Address = None, application: Application = None) -> None:
    """Resume paused engines."""
    _control(_Where(port, address, application), "resume", model)


@in_one_line
def sleep(
    port: Port = None,
    model: Model = None,
    level: Annotated[int, typer.Option(min=0, max=2, help="0: free no memory, 1: caches, 2: weights too")] = 1,
    address: Address = None,
    application: Application = None,
) -> None:
    """Pause the engines and free their memory: requests are kept, and new ones queue."""
    _control(_Where(port, address, application), "sleep", model, level=level)


@in_one_line
def wake(port: Port = None, model: Model = None, address: Address = None, application: Application = None) -> None:
    """Allocate the memory of sleeping engines again and resume them."""
    _control(_Where(port, address, application), "wake", model)


@in_one_line
def drain(
    engine: Annotated[
        str | None, typer.Argument(help="name of the engine, or a part of it (see rayinfer status)")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="replace all engines of all models")] = False,
    shrink: Annotated[bool, typer.Option("--shrink", help="start no replacement: one engine fewer")] = False,
    node: Annotated[
        str | None, typer.Option(help="move everything off this node, by its address, name or id; Ray then ends there")
    ] = None,
    deadline: Annotated[
        float, typer.Option(min=1.0, help="seconds after which the node goes, with --node")
    ] = NODE_DEADLINE_S,
    port: Port = None,
    address: Address = None,
    application: Application = None,
) -> None:
    """Replace an engine, or empty a node: streams migrate at once, and new engines are started in place of others."""
    where = _Where(port, address, application)
    if node is not None:
        if engine is not None or every or shrink:
            raise ConfigError("--node excludes an engine's name, --all and --shrink: it is all of a node")
        emptied = _ask(where, "drain_node", deadline + CONTROL_S, node=node, deadline_s=deadline)
        typer.echo(f"{emptied['node']} is empty; moved: {', '.join(emptied['moved']) or 'nothing'}")
        return
    if (engine is None) != every:
        raise ConfigError("name one engine (`rayinfer status` lists them), or pass --all or --node NODE")
    if every and shrink:
        raise ConfigError("--shrink excludes --all: name one engine")
    done = _ask(where, "drain", DRAIN_S, engine=engine, shrink=shrink)
    typer.echo(f"removed: {', '.join(done['left'])}")
    typer.echo(f"engines: {', '.join(done['engines'])}")


@in_one_line
def reload(
    source: Annotated[str, typer.Argument(help="checkpoint: folder, of any node, GGUF file, Hugging Face repository")],
    model: Annotated[str | None, typer.Option(help="the model that gets the weights (default: the only one)")] = None,
    port: Port = None,
    address: Address = None,
    application: Application = None,
) -> None:
    """Load other weights into a model, engine by engine: no request fails, and streams continue with them."""
    checked = _checked_source(source)
    done = _ask(_Where(port, address, application), "reload", RELOAD_S, source=checked, model=model)
    typer.echo(f"{done['model']}: weights of {done['source']}, version {done['weights_version']}")


def _checked_source(source: str) -> str:
    """Check a checkpoint that this machine has, or can download; the service looks for a folder on other nodes."""
    from rayinfer.errors import ModelNotFound
    from rayinfer.models.checkpoints.sources import resolve_model
    from rayinfer_deployments.cli.checked_folders import check_folder

    path = Path(source).expanduser()
    try:
        folder = resolve_model(source)
    except ModelNotFound:
        if not path.is_absolute():
            raise
        return str(path)
    check_folder(folder)
    return str(path.resolve()) if path.exists() else source


def _control(where: "_Where", action: str, model: str | None, **arguments: Any) -> None:
    models = _ask(where, "control", CONTROL_S, action=action, model=model, **arguments)
    typer.echo(f"{action}: {', '.join(models)}")


def _ask(where: "_Where", operation: str, timeout_s: float, **arguments: Any) -> Any:
    with chosen_service(*where) as service:
        return service.ask(operation, timeout_s=timeout_s, **arguments)


class _Where(NamedTuple):
    """Options that select the service of a command."""

    port: int | None
    address: str | None
    application: str | None
