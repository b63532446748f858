"""Appearance of the page: contrast of its fields, its head in narrow windows, texts that turn directions."""

import json
import subprocess

import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from support.services.served_application import served
from support.services.web_page import ask, wait_for_models

pytestmark = pytest.mark.ui

REVERSED = "abc\u202edef"
LEAST_CONTRAST = 3  # of what shows where a field is (WCAG AA)
CONTRASTS = """() => {
    const luminance = (color) => {
        const parts = color.match(/[\\d.]+/g).slice(0, 3).map((each) => each / 255);
        const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        const [red, green, blue] = parts.map(linear);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const behind = (element) => {
        for (let each = element.parentElement; each; each = each.parentElement) {
            const color = getComputedStyle(each).backgroundColor;
            if (!color.endsWith(", 0)")) return color;
        }
    };
    const fields = [...document.querySelectorAll("input:not([type=file]), select, textarea")];
    return fields.filter((each) => each.checkVisibility()).map((each) => {
        const [dark, light] = [getComputedStyle(each).borderColor, behind(each)].map(luminance).sort((a, b) => a - b);
        return (light + 0.05) / (dark + 0.05);
    });
}"""
# Where a text that follows another one is on the screen.
LEFT_OF = """(element, text) => {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const at = node.data.indexOf(text);
        if (at < 0) continue;
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + text.length);
        return range.getBoundingClientRect().left;
    }
}"""


@pytest.fixture
def fake_service(fake_models):
    with served(build_app(fake_models, ServiceMetrics())) as url:
        yield url


@pytest.mark.parametrize("view", ["chat", "tokens", "docs"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_edges_of_fields_stand_out(visit, fake_service, view, theme):
    page = visit(f"{fake_service}/#{view}", color_scheme=theme).page
    page.locator("main input").first.wait_for()
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 1
    assert min(contrasts) >= LEAST_CONTRAST


@pytest.mark.parametrize(("width", "most"), [(900, 60), (380, 130)])
def test_the_head_of_a_narrow_window_is_low(visit, fake_service, width, most):
    page = visit(fake_service, viewport={"width": width, "height": 800}).page
    page.locator("#ready", has_text="ready").wait_for()
    assert page.locator("header").evaluate("(head) => head.offsetHeight") <= most


def test_a_view_that_gets_the_focus_has_no_frame(visit, fake_service):
    page = visit(fake_service).page
    page.get_by_role("link", name="Tokens").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.tagName === 'MAIN'")
    assert page.locator("main").evaluate("(main) => getComputedStyle(main).outlineStyle") == "none"


def test_settings_of_tokens_are_as_far_apart_as_the_rest(visit, fake_service):
    page = visit(f"{fake_service}/#tokens").page
    wait_for_models(page)
    page.locator("input[name=seed]").wait_for()
    gaps = page.locator("main .view").evaluate(
        """(view) => [...view.children].filter((each) => each.checkVisibility()).slice(0, 5).map((each, index, all) =>
            index && Math.round(each.getBoundingClientRect().top - all[index - 1].getBoundingClientRect().bottom))"""
    )
    assert gaps == [0, 16, 16, 16, 16]


def test_a_question_that_turns_its_direction_leaves_the_dialog_readable(visit, fake_service):
    page = visit(fake_service).page
    wait_for_models(page)
    ask(page, REVERSED)
    page.locator(".figures", has_text="in the prompt").wait_for()
    page.get_by_role("button", name="Delete").click()
    text = page.locator("dialog p")
    assert text.inner_text() == "“abc\\u202edef” is kept in this browser only."
    assert text.evaluate(LEFT_OF, "abc") < text.evaluate(LEFT_OF, "browser")


@pytest.mark.parametrize("token", [REVERSED, "\u05e9\u05dc\u05d5\u05dd"], ids=["turned", "right to left"])
def test_a_token_of_another_direction_leaves_its_probability_behind_it(visit, fake_service, token):
    page = visit(f"{fake_service}/#tokens").page
    wait_for_models(page)
    logprobs = {"tokens": [token], "token_logprobs": [-0.5], "top_logprobs": [{token: -0.5, "x": -1.0}]}
    text = f"data: {json.dumps({'choices': [{'index': 0, 'text': token, 'logprobs': logprobs}]})}\n\ndata: [DONE]\n\n"
    page.route("**/v1/completions", lambda route: route.fulfill(body=text, content_type="text/event-stream"))
    page.get_by_role("button", name="Complete").click()
    page.locator(".tokens .token").click()
    for place in (page.locator(".alternatives p"), page.locator(".alternatives button").first):
        code = place.locator("code")
        end = code.evaluate("(code) => code.getBoundingClientRect().right")
        assert place.evaluate(LEFT_OF, "60.7") >= end


def test_exports_write_what_turns_directions_as_codes(visit, fake_service):
    page = visit(fake_service).page
    wait_for_models(page)
    ask(page, REVERSED)
    page.locator(".figures", has_text="in the prompt").wait_for()
    for form in ("curl", "Python"):
        page.get_by_role("button", name=form).click()
        shown = page.locator("dialog pre").inner_text()
        assert "abc\\u202edef" in shown
        assert "\u202e" not in shown
        page.get_by_role("button", name="Close").click()


def test_a_long_request_as_curl_is_no_longer_than_a_shell_takes(visit, fake_service):
    page = visit(f"{fake_service}/#tokens", permissions=["clipboard-read", "clipboard-write"]).page
    wait_for_models(page)
    page.get_by_label("Text to complete").fill('"' * 70_000)
    page.get_by_role("button", name="curl").click()
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    command = page.evaluate("() => navigator.clipboard.readText()")
    done = subprocess.run(["sh"], input=command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.endswith("data: [DONE]\n\n")) == (0, True), done.stderr


def test_events_of_a_trace_fit_a_narrow_window(visit, fake_service):
    page = visit(fake_service, viewport={"width": 390, "height": 800}).page
    details = {"engine": "rayinfer-engine-fqeus0bj", "why": "load", "cached_tokens": 0, "waited_s": 0.001}
    events = [{"name": name, "time_s": 1.0, "details": details} for name in ("received", "dispatched", "prefill_chunk")]
    trace = {"id": "cmpl-1", "model": "fake", "events": events, "num_events_dropped": 0}
    page.route("**/trace", lambda route: route.fulfill(json={"data": [trace]}))
    page.goto(f"{fake_service}/#requests/cmpl-1")
    page.locator("tbody tr").nth(2).wait_for()
    widths = page.locator("details .scroll").evaluate("(table) => [table.scrollWidth, table.clientWidth]")
    assert widths[0] == widths[1]


def test_every_path_says_what_it_is_for(visit, service):
    page = visit(f"{service}/#docs").page
    page.locator(".operations summary", has_text="/v1/responses/{response_id}/input_items").wait_for()
    texts = page.locator(".operations summary").all_text_contents()
    assert [text for text in texts if len(text.split()) < 3] == []


def test_a_page_without_a_key_says_where_it_goes(visit, fake_service):
    opened = visit(fake_service)
    opened.expected = ("401",)
    refusal = {"error": {"message": "This service needs an API key: send it as `Authorization: Bearer KEY`."}}
    opened.page.route("**/v1/models", lambda route: route.fulfill(status=401, json=refusal))
    opened.page.reload()
    opened.page.locator("[role=status]", has_text="enter it at the top of the page").wait_for()
