import json

import pytest
from transformers import PreTrainedTokenizerFast

from rayinfer.errors import InvalidParameter, ModelLoadError
from rayinfer.tokenization.chat_template import ChatTemplate
from support.tiny_models import tiny_tokenizers

CHATML = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {%- if message.role == 'tool' %}{{ raise_exception('no tools\\nhere') }}{% endif -%}\n"
    "<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}{% endfor %}\n"
    "{%- if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PARTS = "{% for m in messages %}{% for part in m.content %}[{{ part.type }}:{{ part.text }}]{% endfor %}{% endfor %}"
PARTS_BY_NAME = (
    "{% for m in messages %}{% set content = m['content'] %}"
    "{% for part in content | list %}[{{ part['text'] }}]{% endfor %}{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)
EVERYTHING = (
    "{% for m in messages %}{% generation %}{{ m.content | trim }}{% endgeneration %}"
    "{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}{{ strftime_now('%') }}{{ tone }}"
)
CHAT = [{"role": "system", "content": "Be <brief> & kind."}, {"role": "user", "content": "Grüß Gott 🙂"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"a": "<b>"}}}]


TEXTS = "{% for m in messages %}{{ m.content }}{% endfor %}"


def text_part(text):
    return {"type": "text", "text": text}


@pytest.mark.parametrize("template", [CHATML, EITHER, EVERYTHING])
@pytest.mark.parametrize("chat", [CHAT, ANSWERED])
@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"add_generation_prompt": True, "tools": TOOLS, "tone": "dry"},
        {"add_generation_prompt": False, "continue_final_message": True},
    ],
)
def test_prompts_are_those_of_transformers(template, chat, options, tmp_path):
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path, chat_template=template)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(chat, tokenize=False, **options)
    assert ChatTemplate.from_folder(tmp_path).render(chat, **options) == expected


def test_the_template_file_wins_over_the_configuration(tmp_path):
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path, chat_template="from the configuration")
    (tmp_path / "chat_template.jinja").write_text("from the file 🙂", encoding="utf-8")
    assert ChatTemplate.from_folder(tmp_path).render(CHAT) == "from the file 🙂"


def test_with_tools_a_template_named_tool_use_is_taken(tmp_path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path, chat_template=named)
    template = ChatTemplate.from_folder(tmp_path)
    assert template.render(CHAT) == "plain"
    assert template.render(CHAT, tools=TOOLS) == "with tools"


def test_more_templates_may_lie_in_a_folder_of_their_own(tmp_path):
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    (tmp_path / "chat_template.jinja").write_text("plain")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert ChatTemplate.from_folder(tmp_path).render(CHAT, tools=TOOLS) == "with tools"


def test_without_a_default_template_the_names_are_listed():
    with pytest.raises(InvalidParameter, match="rag"):
        ChatTemplate({"rag": "x"}).render(CHAT)


def test_a_model_without_a_template_says_so(tmp_path):
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    template = ChatTemplate.from_folder(tmp_path)
    assert not template.exists
    with pytest.raises(InvalidParameter, match="no chat template") as raised:
        template.render(CHAT)
    assert raised.value.param == "messages"


@pytest.mark.parametrize("template", [CHATML, EITHER])
def test_text_parts_are_joined_for_templates_that_read_strings(template):
    parts = [{"role": "user", "content": [text_part("one "), text_part("two")]}]
    whole = [{"role": "user", "content": "one two"}]
    assert ChatTemplate({"default": template}).render(parts) == ChatTemplate({"default": template}).render(whole)


@pytest.mark.parametrize(("template", "expected"), [(PARTS, "[text:one][text:two]"), (PARTS_BY_NAME, "[one][two]")])
def test_strings_become_parts_for_templates_that_read_only_parts(template, expected):
    chat = [{"role": "user", "content": "one"}, {"role": "user", "content": [text_part("two")]}]
    assert ChatTemplate({"default": template}).render(chat) == expected


IMAGES = "{% for m in messages %}{% for p in m.content %}({{ p.type }}){{ p.text }}{% endfor %}{% endfor %}"
IMAGES_OR_TEXT = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}({{ p.type }}){{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [(IMAGES, "(text)b(text)a(image)"), (IMAGES_OR_TEXT, "b(text)a(image)"), (TEXTS, "ba<image>")],
    ids=["parts", "parts or strings", "strings"],
)
def test_images_are_parts_for_templates_that_read_any(template, expected):
    message = {"role": "user", "content": [text_part("a"), {"type": "image"}]}
    chat = [{"role": "system", "content": "b"}, message]
    assert ChatTemplate({"default": template}).render(chat, image_text="<image>") == expected
    with pytest.raises(InvalidParameter, match="parts must be of type 'text', got 'image'"):
        ChatTemplate({"default": template}).render([message])


def test_a_processors_template_is_read_where_there_is_no_other(tmp_path):
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of the processor"}))
    assert ChatTemplate.from_folder(tmp_path).text == "of the processor"
    (tmp_path / "chat_template.jinja").write_text("of the tokenizer")
    assert ChatTemplate.from_folder(tmp_path).text == "of the tokenizer"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"chat_template\.json: not readable as JSON"):
        ChatTemplate.from_folder(tmp_path)


def test_the_messages_of_the_caller_stay_as_they_are():
    chat = [{"role": "user", "content": [text_part("one")]}]
    before = json.dumps(chat)
    ChatTemplate({"default": CHATML}).render(chat, add_generation_prompt=False, continue_final_message=True)
    assert json.dumps(chat) == before


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must\\nalternate') }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{{ 'x' | no_such_filter }}",
    ],
)
def test_whatever_a_template_raises_is_the_fault_of_the_messages(template):
    with pytest.raises(InvalidParameter) as raised:
        ChatTemplate({"default": template}).render(CHAT)
    assert raised.value.param == "messages"
    assert "\n" not in str(raised.value)


def test_the_reason_that_a_template_gives_is_reported():
    with pytest.raises(InvalidParameter, match="no tools here"):
        ChatTemplate({"default": CHATML}).render([{"role": "tool", "content": "x"}])


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        {"role": "user"},
        ["hello"],
        [{"content": "x"}],
        [{"role": 3, "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": text_part("x")}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": ["x"]}],
    ],
)
def test_messages_of_the_wrong_shape_are_refused(messages):
    with pytest.raises(InvalidParameter) as raised:
        ChatTemplate({"default": CHATML}).render(messages)
    assert raised.value.param == "messages"


def test_a_client_may_not_replace_what_the_renderer_sets():
    with pytest.raises(InvalidParameter, match="chat_template") as raised:
        ChatTemplate({"default": CHATML}).render(CHAT, chat_template="{{ 1 }}")
    assert raised.value.param == "chat_template_kwargs"


def test_continuing_a_message_excludes_beginning_a_new_one():
    with pytest.raises(InvalidParameter, match="exclude each other"):
        ChatTemplate({"default": CHATML}).render(ANSWERED, continue_final_message=True)


def test_a_broken_template_is_named_when_the_model_is_loaded(tmp_path):
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    (tmp_path / "chat_template.jinja").write_text("fine\n{% if %}")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja: .*line 2"):
        ChatTemplate.from_folder(tmp_path)


@pytest.mark.parametrize("setting", [3, ["x"], [{"name": "default"}]])
def test_a_configured_template_of_the_wrong_type_is_refused(setting, tmp_path):
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path, chat_template=setting)
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json"):
        ChatTemplate.from_folder(tmp_path)
