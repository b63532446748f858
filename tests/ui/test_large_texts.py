"""Texts of a megabyte without spaces: sent whole, and never long in the way of the page.

Tasks are held by the processor time of the page's own thread, which other processes do not change.
"""

import json

import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from support.services.page_tasks import longest_cpu_ms, recorded_tasks
from support.services.served_application import served
from support.services.web_page import ask, open_more, wait_for_models

pytestmark = pytest.mark.ui

LARGE = "A" * 1_000_000
LONGEST_MS = 400  # thousands where the browser's own field holds the text
CHAT, COMPLETIONS = "**/v1/chat/completions", "**/v1/completions"


@pytest.fixture
def page(visit, fake_models):
    with served(build_app(fake_models, ServiceMetrics())) as url:
        opened = visit(url).page
        wait_for_models(opened)
        yield opened
        opened.close()  # before its service, whose end it would report


def answered(page, path, *chunks):
    """Answer requests to a path; returns their bodies."""
    bodies = []

    def fulfill(route):
        bodies.append(route.request.post_data_json)
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        route.fulfill(body=text, content_type="text/event-stream")

    page.route(path, fulfill)
    return bodies


def said(content):
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": content}}]}


def paste(page, label, text=LARGE):
    page.get_by_label(label).first.focus()
    page.keyboard.insert_text(text)


def test_a_megabyte_is_pasted_sent_and_shown_in_short_tasks(browser, page):
    bodies = answered(page, CHAT, said("Yes"))
    with recorded_tasks(browser, page) as tasks:
        paste(page, "Message")
        page.get_by_text("1,000,000 characters, sent whole").wait_for()
        page.get_by_role("button", name="Send", exact=True).click()
        page.locator(".message.assistant", has_text="Yes").wait_for()
        page.get_by_role("button", name="curl").click()
        page.get_by_text("Long texts are cut here, but copied whole.").wait_for()
        page.get_by_role("button", name="Close").click()
        page.wait_for_timeout(300)
    assert bodies[0]["messages"] == [{"role": "user", "content": LARGE}]
    shown = page.locator(".message.user .text").text_content()
    assert shown == LARGE[:100_000] + "… (900,000 more characters are kept, not shown)"
    assert page.get_by_label("Long text").filter(visible=True).count() == 0
    assert longest_cpu_ms(tasks) < LONGEST_MS


def test_an_answer_of_a_megabyte_comes_in_short_tasks(browser, page):
    answered(page, CHAT, *[said("A" * 10_000)] * 100)
    with recorded_tasks(browser, page) as tasks:
        ask(page)
        page.locator(".message.assistant", has_text="900,000 more characters").wait_for()
        page.wait_for_timeout(300)
    assert longest_cpu_ms(tasks) < LONGEST_MS
    below = "(log) => log.scrollHeight - log.scrollTop - log.clientHeight"
    assert page.locator(".log").evaluate(below) <= 1
    page.reload()
    page.locator(".message.assistant", has_text="This browser kept its beginning only.").wait_for()


def test_long_settings_are_sent_whole(browser, page):
    bodies = answered(page, CHAT, said("Yes"))
    open_more(page)
    with recorded_tasks(browser, page) as tasks:
        paste(page, "System prompt")
        paste(page, "JSON schema", json.dumps({"const": LARGE}))
        paste(page, "Tools (JSON)", json.dumps([{"type": "function", "function": {"name": LARGE}}]))
        ask(page, "Really?")
        page.locator(".message.assistant", has_text="Yes").wait_for()
    body = bodies[0]
    assert body["messages"] == [{"role": "system", "content": LARGE}, {"role": "user", "content": "Really?"}]
    assert body["response_format"]["json_schema"]["schema"] == {"const": LARGE}
    assert body["tools"][0]["function"]["name"] == LARGE
    assert longest_cpu_ms(tasks) < LONGEST_MS


def test_a_long_text_is_completed_in_short_tasks(browser, page):
    page.get_by_role("link", name="Tokens").click()
    logprobs = {"tokens": ["B"], "token_logprobs": [-0.5], "top_logprobs": [{"B": -0.5, "C": -1.0}]}
    bodies = answered(page, COMPLETIONS, {"choices": [{"index": 0, "text": "B", "logprobs": logprobs}]})
    page.get_by_label("Text to complete").fill("")
    with recorded_tasks(browser, page) as tasks:
        paste(page, "Text to complete")
        page.get_by_role("button", name="Complete").click()
        page.locator(".tokens .token").click()
        page.locator(".alternatives button:enabled").click()
        page.wait_for_timeout(300)
    assert [body["prompt"] for body in bodies] == [LARGE, LARGE + "C"]
    assert longest_cpu_ms(tasks) < LONGEST_MS


def test_a_long_text_continues_is_edited_and_removed(page):
    bodies = answered(page, CHAT, said("Yes"))
    field, half = page.get_by_label("Message"), "word " * 10_000
    field.fill("Read this: . Thanks.")
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    page.keyboard.insert_text(half)
    chip = page.get_by_label("Long text").filter(visible=True)
    assert (
        chip.get_by_role("status").inner_text()
        == "50,020 characters, sent whole: Read this: word word word word word word…"
    )
    page.keyboard.type("And?")
    chip.get_by_role("button", name="Edit").click()
    assert field.input_value() == f"Read this: {half}. Thanks.And?"
    page.keyboard.press("End")
    page.keyboard.type("!")
    field.press("Enter")
    page.locator(".message.assistant", has_text="Yes").wait_for()
    assert bodies[0]["messages"][0]["content"] == f"Read this: {half}. Thanks.And?!"
    page.get_by_role("button", name="Edit").click()
    chip.get_by_role("button", name="Remove").click()
    assert page.evaluate("() => document.activeElement.ariaLabel") == "Edited message"
    page.get_by_label("Edited message").fill("Short")
    page.get_by_role("button", name="Send again").click()
    page.locator(".message.user", has_text="Short").wait_for()
    assert bodies[1]["messages"] == [{"role": "user", "content": "Short"}]


def test_the_clipboard_is_pasted_like_any_text(visit, fake_models):
    with served(build_app(fake_models, ServiceMetrics())) as url:
        page = visit(url, permissions=["clipboard-read", "clipboard-write"]).page
        wait_for_models(page)
        page.evaluate("() => navigator.clipboard.writeText('A'.repeat(1_000_000))")
        page.get_by_label("Message").focus()
        page.keyboard.press("Control+V")
        page.get_by_text("1,000,000 characters, sent whole").wait_for()
        assert page.get_by_label("Message").input_value() == ""
        page.close()


def test_short_pastes_stay_in_their_field(page):
    paste(page, "Message", "word " * 1000)
    assert page.get_by_label("Message").input_value() == "word " * 1000
    assert page.get_by_label("Long text").filter(visible=True).count() == 0
