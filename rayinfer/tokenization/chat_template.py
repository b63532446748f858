"""Conversations to prompts, with the template that comes with the model."""

import functools
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rayinfer.errors import InvalidParameter, ModelLoadError
from rayinfer.tokenization.tokenizer import read_tokenizer_config, special_tokens

TEMPLATE_FILE = "chat_template.jinja"
PROCESSOR_FILE = "chat_template.json"  # of older models that read images
MORE_TEMPLATES_FOLDER = "additional_chat_templates"
# What the renderer sets itself: a client may not.
RESERVED_NAMES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversations",
        "image_text",
        "messages",
        "return_assistant_tokens_mask",
        "tools",
    }
)


class ChatTemplate:
    """One model's chat template, run in transformers' sandbox; `{}` stands for a model that has none."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str] | None = None) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens or {})
        self._wants_parts = {name: wants_parts(template) for name, template in self._templates.items()}
        self._reads_parts = {name: reads_parts(template) for name, template in self._templates.items()}

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate":
        """Load chat_template.jinja, else what tokenizer_config.json or a processor's chat_template.json holds.

        Raises ModelLoadError for a broken one.
        """
        settings = read_tokenizer_config(folder)
        templates, source = _templates_in_files(folder), folder / TEMPLATE_FILE
        if not templates:
            source = folder / "tokenizer_config.json"
            templates = _templates_in_settings(settings.get("chat_template"), source)
        if not templates and (folder / PROCESSOR_FILE).is_file():
            source = folder / PROCESSOR_FILE
            templates = _templates_in_settings(_processor_template(source), source)
        try:
            return cls(templates, special_tokens(settings))
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"{source}: broken chat template, line {error.lineno}: {error.message}") from error

    @property
    def exists(self) -> bool:
        """Whether the model came with a template."""
        return bool(self._templates)

    def replaced_by(self, template: str) -> "ChatTemplate":
        """Return a client's template with this one's special tokens; raises InvalidParameter for a broken one."""
        try:
            return ChatTemplate({"default": template}, self._special_tokens)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidParameter(f"chat_template: line {error.lineno}: {error.message}", "chat_template") from error
        except RecursionError as error:
            raise InvalidParameter("chat_template is nested too deeply", "chat_template") from error

    @property
    def text(self) -> str | None:
        """The template of conversations without tools, as it is written; None for a model that has none."""
        return self._templates.get("default")

    def text_for(self, *, has_tools: bool) -> str | None:
        """Return the template of conversations with tools, or without them; None for a model that has none."""
        return self._templates.get("tool_use", self.text) if has_tools else self.text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        image_text: str | None = None,
        **template_kwargs: Any,
    ) -> str:
        """Write the prompt; whatever the template refuses or cannot handle is an InvalidParameter.

        Parts of type "image" are refused, unless `image_text` is what a template that reads no parts gets for them.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidParameter(
                "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
            )
        refused = sorted(RESERVED_NAMES & template_kwargs.keys())
        if refused:
            raise InvalidParameter(f"template arguments may not set {', '.join(refused)}", "chat_template_kwargs")
        name = self._choose(has_tools=tools is not None)
        wants, reads = self._wants_parts[name], self._reads_parts[name]
        chat = [
            _adapted(message, wants or (reads and _has_image(message)), image_text) for message in _checked(messages)
        ]
        try:
            rendered, _ = renderer()(
                conversations=[chat],
                tools=None if tools is None else [dict(tool) for tool in tools],
                chat_template=self._templates[name],
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(self._special_tokens | template_kwargs),
            )
        except RecursionError as error:
            raise InvalidParameter("the JSON is nested too deeply for the chat template", "messages") from error
        except Exception as error:  # a template is a program: it may raise anything, and what it was given is to blame
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InvalidParameter(f"the chat template refuses these messages: {reason}", "messages") from error
        return str(rendered[0])

    def _choose(self, *, has_tools: bool) -> str:
        if has_tools and "tool_use" in self._templates:
            return "tool_use"
        if "default" in self._templates:
            return "default"
        if not self._templates:
            raise InvalidParameter("this model has no chat template: send a plain prompt instead", "messages")
        raise InvalidParameter(
            f"none of this model's chat templates {sorted(self._templates)} is the default", "messages"
        )


@functools.cache
def renderer() -> Callable[..., Any]:
    """Import transformers' renderer, which takes a second or more: call this ahead where that matters."""
    rendering: Callable[..., Any] = importlib.import_module(
        "transformers.utils.chat_template_utils"
    ).render_jinja_template
    return rendering


def wants_parts(template: str) -> bool:
    """Return whether a template reads contents only as lists of parts: it loops over them and never tests for strings.

    Raises jinja2.TemplateSyntaxError.
    """
    is_tested = any(test.name == "string" for test in _PARSER.parse(template).find_all(nodes.Test))
    return not is_tested and reads_parts(template)


def reads_parts(template: str) -> bool:
    """Return whether a template reads contents as lists of parts, if not only so; raises jinja2.TemplateSyntaxError."""
    tree = _PARSER.parse(template)
    assigned = [assign.target for assign in tree.find_all(nodes.Assign) if _is_content(assign.node, frozenset())]
    names = frozenset(target.name for target in assigned if isinstance(target, nodes.Name))
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, names: frozenset[str]) -> bool:
    """Return whether an expression is `x.content`, `x["content"]` or one of the names given to it, filtered or not."""
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _is_content(node.node, names)
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


def _checked(messages: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    if isinstance(messages, str | Mapping) or not messages:
        raise InvalidParameter("messages must be a list of at least one message", "messages")
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidParameter(f"messages[{position}] must be an object with a role", "messages")
    return messages


def _adapted(message: Mapping[str, Any], wants_parts: bool, image_text: str | None) -> dict[str, Any]:
    """Give a message's content the form that the template reads: one string, or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content}]} if wants_parts else dict(message)
    if content is None:
        return dict(message)
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise InvalidParameter(f"content must be a string or a list of parts, got {type(content).__name__}", "messages")
    parts = [_adapted_part(part, takes_images=image_text is not None) for part in content]
    if wants_parts:
        return {**message, "content": parts}
    return {**message, "content": "".join(part.get("text", image_text or "") for part in parts)}


def _has_image(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return False
    return any(isinstance(part, Mapping) and part.get("type") == "image" for part in content)


def _adapted_part(part: Any, *, takes_images: bool) -> dict[str, Any]:
    if takes_images and isinstance(part, Mapping) and part.get("type") == "image":
        return {"type": "image"}
    return {"type": "text", "text": _text_of(part)}


def _text_of(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise InvalidParameter(f"content parts must be of type 'text', got {kind!r}", "messages")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidParameter("a content part of type 'text' must hold its text as a string", "messages")
    return text


def _templates_in_files(folder: Path) -> dict[str, str]:
    more = folder / MORE_TEMPLATES_FOLDER
    paths = {path.stem: path for path in sorted(more.glob("*.jinja"))}
    if (folder / TEMPLATE_FILE).is_file():
        paths["default"] = folder / TEMPLATE_FILE
    templates = {}
    for name, path in paths.items():
        try:
            templates[name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    return templates


def _processor_template(file: Path) -> object:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file}: not readable as JSON: {error}") from None
    return raw.get("chat_template") if isinstance(raw, dict) else None


def _templates_in_settings(setting: object, source: Path) -> dict[str, str]:
    """Read the `chat_template` of a tokenizer_config.json: a template, or a list of templates with names."""
    if setting is None:
        return {}
    if isinstance(setting, str):
        return {"default": setting}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in setting}  # type: ignore[attr-defined]
    except (TypeError, KeyError) as error:
        raise ModelLoadError(f"{source}: chat_template must be a string or a list of named templates") from error


class _GenerationTag(jinja2.ext.Extension):
    """A parser extension for transformers' `{% generation %}` blocks."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        """Read the block as if its tags were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_PARSER = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
)
