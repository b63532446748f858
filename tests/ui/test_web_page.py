"""The web page in a browser, over a running service."""

import time

import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from support.services.served_application import served

pytestmark = pytest.mark.ui

QUESTION = "What is the capital of France?"
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</div><script>alert(2)</script>",
    "\u202egnp.exe",
    "\x1b[31mred",
    "A" * 1_000_000,
)


def choose_settings(page, **values):
    page.locator("select option").first.wait_for(state="attached")
    for name, value in values.items():
        page.locator(f"input[name={name}]").first.fill(str(value))


def ask(page, text=QUESTION):
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def test_chat_streams_stops_edits_and_starts_again(visit, service):
    page = visit(service).page
    choose_settings(page, max_tokens=8, temperature=0)
    ask(page)
    page.locator(".figures", has_text="8 tokens").wait_for()
    first = page.locator(".message.assistant .text").inner_text()
    page.get_by_role("button", name="Regenerate").click()
    page.locator(".figures", has_text="8 tokens").wait_for()
    assert page.locator(".message.assistant .text").inner_text() == first
    choose_settings(page, max_tokens=4000)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("Another question")
    page.get_by_role("button", name="Send again").click()
    page.locator(".figures", has_text="tokens/s").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.locator(".figures", has_text="stopped").wait_for()
    assert page.locator(".message").count() == 2
    page.reload()
    page.locator(".message.user", has_text="Another question").wait_for()
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".message").count() == 0


def test_two_settings_answer_side_by_side(visit, service):
    page = visit(service).page
    page.get_by_role("button", name="Side by side").click()
    page.locator(".pane >> nth=1").locator("select option").wait_for(state="attached")
    for pane, tokens in ((0, 5), (1, 7)):
        page.locator(f".pane >> nth={pane}").locator("input[name=max_tokens]").fill(str(tokens))
    ask(page)
    page.locator(".figures >> nth=0", has_text="5 tokens").wait_for()
    page.locator(".figures >> nth=1", has_text="7 tokens").wait_for()


def test_an_answer_follows_a_json_schema(visit, service):
    page = visit(service).page
    schema = page.get_by_label("JSON schema of the answer").first
    schema.fill("{")
    ask(page)
    page.get_by_role("alert").filter(has_text="not valid JSON").wait_for()
    page.get_by_role("button", name="New chat").click()
    schema.fill('{"enum": ["yes", "no"]}')
    ask(page, "Is it so?")
    page.locator(".figures", has_text="tokens").wait_for()
    assert page.locator(".message.assistant .text").inner_text() in ('"yes"', '"no"')
    page.get_by_role("button", name="Python").click()
    assert 'response_format={"type": "json_schema"' in page.locator("dialog pre").inner_text()


def test_the_next_request_is_shown_as_curl_and_python(visit, service):
    page = visit(service).page
    choose_settings(page, seed=3)
    page.get_by_role("button", name="curl").click()
    assert f"curl -N {service}" in page.locator("dialog pre").inner_text()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Python").click()
    assert "seed=3" in page.locator("dialog pre").inner_text()


def test_an_alternative_of_a_token_goes_on_from_there(visit, service):
    page = visit(f"{service}/#tokens").page
    choose_settings(page, max_tokens=6, temperature=0)
    page.get_by_role("button", name="Complete").click()
    page.locator(".figures", has_text="6 tokens").wait_for()
    page.locator(".tokens .token").nth(2).click()
    other = page.locator(".alternatives button:enabled").first
    before = page.get_by_label("Text to complete").input_value()
    other.click()
    page.locator(".figures", has_text="6 tokens").wait_for()
    assert len(page.get_by_label("Text to complete").input_value()) > len(before)


def test_the_live_view_shows_rates_and_engines(visit, service):
    live, chat = visit(f"{service}/#live").page, visit(service).page
    live.locator(".engine", has_text="running").wait_for()
    choose_settings(chat, max_tokens=8000)
    ask(chat)
    live.locator(".engine", has_text="1 running").wait_for()
    live.locator("dl div", has_text="Tokens/s out").locator("dd", has_text="0.0").wait_for(state="detached")
    chat.get_by_role("button", name="Stop").click()
    live.locator(".engine", has_text="0 running").wait_for()


def test_the_trace_of_an_answer_is_one_link_away(visit, service):
    page = visit(service).page
    choose_settings(page, max_tokens=3)
    ask(page)
    page.get_by_role("link", name="trace").click()
    page.locator(".trace tbody tr").nth(2).wait_for()
    assert "tiny" in page.locator(".trace h2").inner_text()


def test_the_paths_of_the_service_are_listed(visit, service):
    page = visit(f"{service}/docs").page
    page.get_by_label("Filter paths").fill("chat/completions")
    page.locator(".operations summary", has_text="/v1/chat/completions").click()
    page.locator(".operations pre", has_text="messages (required)").wait_for()


@pytest.mark.parametrize("view", ["chat", "tokens", "live", "requests", "docs"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessibility_checks_find_nothing_serious(visit, service, view, theme):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(f"{service}/#{view}", color_scheme=theme, bypass_csp=True).page
    page.locator("#ready", has_text="ready").wait_for()
    time.sleep(0.5)
    found = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize("content", HOSTILE, ids=["tag", "script", "bidi", "ansi", "large"])
def test_hostile_content_is_shown_as_text(visit, fake_models, content):
    fake_models["fake"].generator.pieces = (content, "!")
    with served(build_app(fake_models, ServiceMetrics())) as url:
        page = visit(url).page
        page.locator("select option").first.wait_for(state="attached")
        ask(page, content[:2000])
        page.locator(".figures", has_text="2 tokens").wait_for()
        text = page.locator(".message.assistant .text").text_content()
        assert (
            text == content + "!" if len(content) < 100_000 else text.startswith(content[:100_000] + "… (900,001 more")
        )
        assert page.locator("main img, main script").count() == 0


def test_a_key_is_kept_in_memory_only(visit, service):
    page = visit(service).page
    page.get_by_label("API key").fill("ri-secret")
    page.keyboard.press("Enter")
    stored = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert "ri-secret" not in stored
    page.reload()
    assert page.get_by_label("API key").input_value() == ""


def test_the_page_fits_a_narrow_window(visit, service):
    for view in ("chat", "tokens", "live", "requests", "docs"):
        page = visit(f"{service}/#{view}", viewport={"width": 360, "height": 740}).page
        page.locator("#ready", has_text="ready").wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360, view
