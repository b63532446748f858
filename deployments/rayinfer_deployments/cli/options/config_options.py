"""Command-line options made from EngineConfig's fields, so that a new field is a new flag of every command."""

import functools
import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rayinfer.config import EngineConfig

ENGINE_PANEL = "Engine"
SETTINGS_PARAMETER = "engine_settings"


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one option per engine setting to a command, which receives the given ones as `engine_settings`.

    A setting of which the command has a parameter of its own is left to it.
    """
    parameters = inspect.signature(command).parameters
    names = [name for name in EngineConfig.model_fields if name not in parameters]

    @functools.wraps(command)
    def with_settings(**arguments: Any) -> None:
        given = {name: value for name in names if (value := arguments.pop(name)) is not None}
        command(**arguments, **{SETTINGS_PARAMETER: given})

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in parameters.items()
        if name != SETTINGS_PARAMETER
    ]
    options = [_option(name, EngineConfig.model_fields[name]) for name in names]
    with_settings.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    with_settings.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *options]}
    return with_settings


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    kind = _without_none(field.annotation)
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    default = field.get_default()
    shown = "" if default in (None, {}) or default is PydanticUndefined else f" (default: {_show(default)})"
    is_mapping = get_origin(kind) is dict
    option = typer.Option(
        declaration,
        help=(field.description or "") + shown,
        show_default=False,
        rich_help_panel=ENGINE_PANEL,
        parser=_json_object if is_mapping else None,
        metavar="JSON" if is_mapping else None,
    )
    kind = dict if is_mapping else kind
    # None stands for "not given": the default then stays EngineConfig's own affair.
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _show(default: object) -> str:
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)


def _json_object(text: str | dict[str, Any]) -> dict[str, Any]:
    """Read the value of an option that is a JSON object."""
    if isinstance(text, dict):
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not readable as JSON: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter("not a JSON object")
    return value


def _without_none(annotation: Any) -> Any:
    """Take `None` out of `int | None`; a choice of several kinds is read as text, and checked with the settings."""
    if get_origin(annotation) in (Literal, dict) or not get_args(annotation):
        return annotation
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else str
