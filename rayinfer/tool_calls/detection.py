"""The formats that a chat template shows."""

from rayinfer.tool_calls.answer_parser import ReasoningTags
from rayinfer.tool_calls.formats import FORMATS, ToolFormat

# The first row of which all texts stand in the template decides.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "<|message|>"), "harmony"),
    (("<｜tool▁calls▁begin｜>",), "deepseek"),
    (("<start_function_call>",), "gemma"),
    (("<|tool_call>",), "gemma"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<function_calls>",), "olmo"),
    (("functools[",), "phi4_mini"),
    (("<|tool|>", "<|/tool|>"), "phi4_mini"),
    (("<|tool_call|>",), "granite"),
    (("<tool_call>",), "hermes"),
    (("<|python_start|>",), "pythonic"),
    (("func_name1(params_name1=",), "pythonic"),
    (("<|python_tag|>",), "llama3_json"),
    (('"parameters"', "tools"), "llama3_json"),
)
_TAGS = (
    ReasoningTags(),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("<reasoning>", "</reasoning>"),
)


def detect_format(template: str | None) -> ToolFormat:
    """Return the format of a template's calls; `generic` where it knows no tools."""
    text = template or ""
    for signs, name in _SIGNS:
        if all(sign in text for sign in signs):
            return FORMATS[name]
    return FORMATS["generic"]


def detect_reasoning(template: str | None) -> ReasoningTags | None:
    """Return the tags around reasoning; None where the template shows none."""
    return next((tags for tags in _TAGS if tags.end in (template or "") or tags.begin in (template or "")), None)


def has_reasoning(template: str | None) -> bool:
    """Return whether answers to a template's prompts may have reasoning that is split off."""
    return detect_reasoning(template) is not None or detect_format(template).is_harmony


def begins_in_reasoning(prompt: str, tags: ReasoningTags) -> bool:
    """Return whether a prompt ends within reasoning, which the template has opened."""
    return prompt.rfind(tags.begin) > prompt.rfind(tags.end) and prompt.rstrip().endswith(tags.begin)
