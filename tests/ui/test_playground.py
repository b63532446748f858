"""Playground with models whose answers are given: requests that it sends, and their answers on the page."""

import ast
import json
import shlex
from dataclasses import replace

import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from support.services.served_application import served
from support.services.web_page import HOSTILE, ask, choose_settings, open_more, wait_for_models

pytestmark = pytest.mark.ui

CHAT, COMPLETIONS = "**/v1/chat/completions", "**/v1/completions"


@pytest.fixture
def fake_service(fake_models):
    generator = fake_models["fake"].generator
    generator.default_sampling_params = {"temperature": 0.2, "top_p": 0.5}
    with served(build_app(fake_models, ServiceMetrics())) as url:
        yield url


def answer_with(page, path, *chunks):
    """Answer requests to a path by chunks of a stream; returns the bodies that come."""
    bodies = []

    def fulfill(route):
        bodies.append(route.request.post_data_json)
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        route.fulfill(body=text, content_type="text/event-stream")

    page.route(path, fulfill)
    return bodies


def delta(**fields):
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": fields}]}


def test_all_settings_are_sent(visit, fake_service):
    page = visit(fake_service).page
    bodies = answer_with(page, CHAT, delta(content="Yes"))
    chosen = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3}
    more = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": -0.5}
    open_more(page)
    choose_settings(page, **chosen, **more, stop="END")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Tools (JSON)").fill('[{"type": "function", "function": {"name": "add"}}]')
    page.get_by_label("Tool choice").select_option("required")
    ask(page, "Really?")
    page.locator(".message.assistant", has_text="Yes").wait_for()
    expected = {"model": "fake", **chosen, **more, "stop": "END", "stream": True, "tool_choice": "required"}
    assert bodies[0].items() >= expected.items()
    assert bodies[0]["tools"] == [{"type": "function", "function": {"name": "add"}}]
    assert bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Really?"},
    ]


def test_the_defaults_of_a_model_are_shown_and_not_sent(visit, fake_service):
    page = visit(fake_service).page
    bodies = answer_with(page, CHAT, delta(content="Yes"))
    wait_for_models(page)
    shown = {
        each: page.locator(f"input[name={each}]").get_attribute("placeholder") for each in ("temperature", "top_p")
    }
    assert shown == {"temperature": "0.2", "top_p": "0.5"}
    assert page.locator("input[name=top_k]").get_attribute("placeholder") == "off"
    ask(page)
    page.locator(".message.assistant", has_text="Yes").wait_for()
    assert set(bodies[0]) == {"model", "messages", "stream", "stream_options"}


def test_the_model_that_is_chosen_answers(visit, fake_models):
    fake_models["other"] = replace(fake_models["fake"], name="other")
    with served(build_app(fake_models, ServiceMetrics())) as url:
        page = visit(url).page
        bodies = answer_with(page, CHAT, delta(content="Yes"))
        wait_for_models(page)
        page.get_by_role("button", name="Side by side").click()
        page.get_by_label("Model", exact=True).nth(1).locator("option").nth(1).wait_for(state="attached")
        page.get_by_label("Model", exact=True).nth(1).select_option("other")
        ask(page)
        page.locator(".message.assistant", has_text="Yes").nth(1).wait_for()
        assert sorted(body["model"] for body in bodies) == ["fake", "other"]


def test_a_log_stays_at_its_end(visit, fake_models):
    fake_models["fake"].generator.pieces = ("line\n" * 40, "last")
    with served(build_app(fake_models, ServiceMetrics())) as url:
        page = visit(url).page
        wait_for_models(page)
        ask(page)
        page.locator(".figures", has_text="2 tokens").wait_for()
        below = "(log) => log.scrollHeight - log.scrollTop - log.clientHeight"
        assert page.locator(".log").evaluate(below) <= 1
        page.set_viewport_size({"width": 1280, "height": 500})
        page.wait_for_timeout(300)
        assert page.locator(".log").evaluate(below) <= 1
        page.locator(".log").evaluate("(log) => { log.scrollTop = 0; }")
        page.wait_for_timeout(300)
        page.set_viewport_size({"width": 1280, "height": 450})
        page.wait_for_timeout(300)
        assert page.locator(".log").evaluate("(log) => log.scrollTop") == 0  # as the reader left it


def test_escape_stops_an_answer(visit, fake_models):
    generator = fake_models["fake"].generator
    generator.blocks_after = 1
    with served(build_app(fake_models, ServiceMetrics())) as url:
        page = visit(url).page
        wait_for_models(page)
        ask(page)
        page.locator(".message.assistant", has_text="Hello").wait_for()
        page.keyboard.press("Escape")
        page.locator(".figures", has_text="stopped").wait_for()
        page.wait_for_timeout(500)
        assert len(generator.aborted) == 1
        assert page.locator(".message.assistant .text").inner_text() == "Hello"


def test_figures_of_an_answer_are_those_of_its_stream(visit, fake_models):
    fake_models["fake"].generator.num_cached_tokens = 2
    with served(build_app(fake_models, ServiceMetrics())) as url:
        page = visit(url).page
        wait_for_models(page)
        ask(page)
        figures = page.locator(".figures", has_text="in the prompt")
        for part in ("first token after", "3 tokens", "2 of them cached"):
            assert part in figures.inner_text()


def test_reasoning_is_shown_apart_and_not_sent_again(visit, fake_service):
    page = visit(fake_service).page
    wait_for_models(page)
    bodies = answer_with(
        page, CHAT, delta(reasoning_content="It is "), delta(reasoning_content="easy."), delta(content="4")
    )
    ask(page, "2 + 2?")
    page.locator(".message.assistant .text", has_text="4").wait_for()
    assert page.locator(".reasoning .text").inner_text() == "It is easy."
    ask(page, "Really?")
    page.locator(".message.assistant .text", has_text="4").nth(1).wait_for()
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "4"}


@pytest.mark.parametrize("content", HOSTILE, ids=["tag", "script", "bidi", "ansi", "large"])
def test_hostile_reasoning_and_calls_are_shown_as_text(visit, fake_service, content):
    page = visit(fake_service).page
    wait_for_models(page)
    call = {"index": 0, "id": "call-1", "function": {"name": content, "arguments": content}}
    answer_with(page, CHAT, delta(reasoning_content=content), delta(tool_calls=[call]))
    ask(page)
    page.get_by_role("button", name="Send results").wait_for()
    assert page.locator(".reasoning .text").text_content()[:100_000] == content[:100_000]
    assert page.locator(".calls code").text_content() == f"{content[:200]}({content[:10_000]})"
    assert page.locator(".results label").text_content() == f"Result of {content[:200]}"
    assert page.locator("main img:not(.preview), main script").count() == 0


def test_a_stream_that_fails_says_why_and_keeps_its_text(visit, fake_service):
    page = visit(fake_service).page
    wait_for_models(page)
    answer_with(page, CHAT, delta(content="Half"), {"error": {"message": "The engine is gone.", "code": 500}})
    ask(page)
    page.get_by_role("alert").filter(has_text="The engine is gone.").wait_for()
    assert page.locator(".message.assistant .text").inner_text() == "Half"
    page.locator(".figures", has_text="failed").wait_for()


def test_a_request_that_fails_leaves_no_empty_answer(visit, fake_service):
    page = visit(fake_service).page
    wait_for_models(page)
    bodies = answer_with(page, CHAT, {"error": {"message": "No.", "code": 500}})
    ask(page, "First")
    page.get_by_role("alert").filter(has_text="No.").wait_for()
    ask(page, "Second")
    page.locator(".message.user", has_text="Second").wait_for()
    page.get_by_role("alert").filter(has_text="No.").wait_for()
    assert [message["content"] for message in bodies[-1]["messages"]] == ["First", "Second"]
    assert page.locator(".message.assistant").count() == 0


def test_models_of_a_service_that_starts_are_awaited(visit, fake_service):
    page = visit(f"{fake_service}/docs").page
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": []}), times=1)
    page.get_by_role("link", name="Chat").click()
    page.locator(".notice", has_text="No model for this view is served yet.").wait_for()
    wait_for_models(page)
    assert not any(page.locator(".notice").all_text_contents())


@pytest.mark.parametrize("address", ["#requests/%E0%A4%A", "#constructor", "#toString/x"])
def test_odd_addresses_show_a_view(visit, fake_service, address):
    opened = visit(f"{fake_service}/{address}")
    opened.expected = ("404",)  # there is no such request
    opened.page.locator("main h1").wait_for(state="attached")
    opened.page.get_by_role("link", name="API").click()
    opened.page.get_by_label("Filter paths").wait_for()


def test_exports_are_the_request_itself(visit, fake_service):
    page = visit(fake_service).page
    open_more(page)
    choose_settings(page, seed=3, top_k=5)
    page.get_by_label("System prompt").fill("It's brief.")
    page.get_by_label("Message").focus()
    page.get_by_role("button", name="curl").click()
    shown = page.locator("dialog pre").inner_text()
    arguments = shlex.split(shown)  # as a shell reads them
    body = json.loads(arguments[arguments.index("-d") + 1])
    assert (body["seed"], body["top_k"], body["messages"]) == (3, 5, [{"role": "system", "content": "It's brief."}])
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Python").click()
    tree = ast.parse(page.locator("dialog pre").inner_text())
    (call,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "create"
    ]
    given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    assert (given["seed"], given["extra_body"]) == (3, {"top_k": 5})


def test_exports_are_of_both_panes_side_by_side(visit, fake_service):
    page = visit(fake_service).page
    page.get_by_role("button", name="Side by side").click()
    wait_for_models(page)
    for pane, seed in enumerate((3, 4)):
        page.locator("input[name=seed]").nth(pane).evaluate("(input, seed) => { input.value = seed; }", seed)
    page.get_by_role("button", name="curl").click()
    arguments = shlex.split(page.locator("dialog pre").inner_text())
    bodies = [json.loads(arguments[place + 1]) for place, each in enumerate(arguments) if each == "-d"]
    assert [each["seed"] for each in bodies] == [3, 4]


def test_what_is_copied_is_what_is_shown(visit, fake_service):
    page = visit(fake_service, permissions=["clipboard-read", "clipboard-write"]).page
    wait_for_models(page)
    page.get_by_role("button", name="Python").click()
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()") == page.locator("dialog pre").inner_text()


def test_a_token_shows_its_probability_and_alternatives(visit, fake_service):
    page = visit(f"{fake_service}/#tokens").page
    wait_for_models(page)
    assert page.locator("input[name=max_tokens]").get_attribute("placeholder") == "40"  # the view's own
    page.get_by_role("button", name="Complete").click()
    page.locator(".figures", has_text="3 tokens · perplexity 2.72").wait_for()
    token = page.locator(".tokens .token").first
    assert (token.get_attribute("title"), token.get_attribute("class")) == ("36.8 %", "token p1")
    token.click()
    assert page.locator(".alternatives p").inner_text().endswith("probability 36.8 %. Go on with another:")
    shares = [text.rsplit(" ", 2)[-2] for text in page.locator(".alternatives button").all_inner_texts()]
    assert shares == ["60.7", "36.8", "5.0", "1.8", "0.7"]
    assert page.locator(".alternatives button").nth(1).is_disabled()  # the token itself


@pytest.mark.parametrize("content", HOSTILE, ids=["tag", "script", "bidi", "ansi", "large"])
def test_hostile_tokens_are_shown_as_text(visit, fake_service, content):
    page = visit(f"{fake_service}/#tokens").page
    wait_for_models(page)
    logprobs = {
        "tokens": [content],
        "token_logprobs": [-0.5],
        "top_logprobs": [{content: -0.5, content[:99] + "?": -1.0}],
    }
    answer_with(page, COMPLETIONS, {"choices": [{"index": 0, "text": content, "logprobs": logprobs}]})
    page.get_by_role("button", name="Complete").click()
    token = page.locator(".tokens .token")
    token.click()
    page.locator(".alternatives li").nth(1).wait_for()
    assert token.text_content() == (content if len(content) <= 2000 else content[:2000] + "…")
    assert page.locator("main img:not(.preview), main script").count() == 0


def test_the_theme_follows_the_system_until_it_is_chosen(visit, fake_service):
    page = visit(fake_service, color_scheme="dark").page
    background = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Theme").click()
    light = page.evaluate(background)
    assert (dark, light) == ("rgb(18, 21, 27)", "rgb(246, 247, 249)")
    page.reload()
    assert page.evaluate(background) == light


def test_views_are_reached_by_the_keyboard(visit, fake_service):
    page = visit(fake_service).page
    wait_for_models(page)
    page.wait_for_function("() => document.activeElement.ariaLabel === 'Message'")
    link = page.get_by_role("link", name="Tokens")
    link.focus()
    page.keyboard.press("Enter")
    page.locator("main .tokens").wait_for()
    page.wait_for_function("() => document.activeElement.tagName === 'MAIN'")
    assert link.get_attribute("aria-current") == "page"
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.ariaLabel") == "Model"


def test_an_empty_edit_leaves_the_conversation(visit, fake_service):
    page = visit(fake_service).page
    bodies = answer_with(page, CHAT, delta(content="Yes"))
    wait_for_models(page)
    ask(page, "Really?")
    page.locator(".message.assistant", has_text="Yes").wait_for()
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill(" ")
    page.get_by_role("button", name="Send again").click()
    page.get_by_label("Edited message").press("Escape")
    assert page.evaluate("() => document.activeElement.textContent") == "Edit"
    assert page.locator(".message .text").all_inner_texts() == ["Really?", "Yes"]
    assert len(bodies) == 1


def test_the_last_message_is_whole_in_a_narrow_window(visit, fake_service):
    page = visit(fake_service, viewport={"width": 390, "height": 844}).page
    answer_with(page, CHAT, delta(content="The sea is a vast and mysterious realm. " * 10))
    wait_for_models(page)
    ask(page)
    page.locator(".message.assistant", has_text="realm").wait_for()
    page.wait_for_timeout(300)
    places = page.locator(".log, .message").evaluate_all(
        "(all) => all.map((each) => each.getBoundingClientRect().bottom)"
    )
    assert places[0] - places[-1] >= 1  # a pixel of its own for the border, whatever is rounded


@pytest.mark.parametrize("height", [768, 900])
def test_a_long_answer_leaves_its_composer_in_the_window(visit, fake_service, height):
    page = visit(fake_service, viewport={"width": 1280, "height": height}).page
    answer_with(page, CHAT, delta(content="line\n" * 100))
    wait_for_models(page)
    ask(page)
    page.locator(".message.assistant", has_text="line").wait_for()
    page.wait_for_timeout(300)
    for name in ("Send", "Stop"):
        assert page.get_by_role("button", name=name, exact=True).bounding_box()["y"] < height - 30
    open_more(page)
    boxes = [page.locator(each).bounding_box() for each in (".pane", ".composer")]
    assert boxes[0]["y"] + boxes[0]["height"] < boxes[1]["y"]
