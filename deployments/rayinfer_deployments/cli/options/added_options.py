"""Options that a decorator adds to a command, which receives them as one mapping."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

PARAMETER = "application_settings"


def with_options(
    command: Callable[..., None],
    options: Mapping[str, Any],
    read: Callable[[dict[str, Any]], dict[str, Any]],
) -> Callable[..., None]:
    """Add options, annotations by name, to a command; its `application_settings` get what `read` makes of the values.

    Several groups of options can be added one after the other.
    """

    @functools.wraps(command)
    def with_settings(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in options}
        arguments[PARAMETER] = arguments.get(PARAMETER, {}) | read(given)
        command(**arguments)

    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in inspect.signature(command).parameters.items()
        if name != PARAMETER
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]
    with_settings.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    with_settings.__annotations__ = {each.name: each.annotation for each in [*own, *added]}
    return with_settings
