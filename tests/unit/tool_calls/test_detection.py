import pytest

from rayinfer.tool_calls.answer_parser import ReasoningTags
from rayinfer.tool_calls.detection import begins_in_reasoning, detect_format, detect_reasoning


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% for tool in tools %}...<tool_call></tool_call>", "hermes"),
        ("<tool_call>\n<function=example>\n<parameter=p>", "qwen3_coder"),
        ("{{ '<|python_tag|>' }} ... \"parameters\"", "llama3_json"),
        ("{% if tools %}<|python_start|>{% endif %}", "pythonic"),
        ("[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS][TOOL_CALLS]", "mistral"),
        ("<functions></functions> <function_calls>", "olmo"),
        ("<start_function_call>call:", "gemma"),
        ("<|tool_call>call:", "gemma"),
        ("<|tool|>' + message['tools'] + '<|/tool|>", "phi4_mini"),
        ("write <|tool_call|> then a list", "granite"),
        ("<｜tool▁calls▁begin｜>", "deepseek"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
        ("{{ messages[0].content }}", "generic"),
        (None, "generic"),
    ],
)
def test_templates_show_their_format(template: str | None, name: str) -> None:
    assert detect_format(template).name == name


def test_templates_show_their_reasoning() -> None:
    assert detect_reasoning("...</think>...") == ReasoningTags()
    assert detect_reasoning("[THINK]") == ReasoningTags("[THINK]", "[/THINK]")
    assert detect_reasoning("{{ messages }}") is None


@pytest.mark.parametrize(
    ("prompt", "begins"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("I <think> so", False),
        ("", False),
    ],
)
def test_prompts_may_open_reasoning(prompt: str, begins: bool) -> None:
    assert begins_in_reasoning(prompt, ReasoningTags()) is begins
