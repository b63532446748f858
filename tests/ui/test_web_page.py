"""The web page in a browser, over a running service."""

import json
import os
import signal
import time
from dataclasses import replace

import pytest
from PIL import Image

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineStats
from rayinfer.servers.app import build_app
from support.faults.cli_processes import engine_pids, listed
from support.services.served_application import served
from support.services.web_page import HOSTILE, ask, choose_settings, open_more, wait_for_models

pytestmark = pytest.mark.ui


def test_chat_streams_stops_edits_and_starts_again(visit, service):
    page = visit(service).page
    choose_settings(page, max_tokens=8, temperature=0)
    ask(page)
    page.locator(".figures", has_text="8 tokens").wait_for()
    first = page.locator(".message.assistant .text").inner_text()
    page.get_by_role("button", name="Regenerate").click()
    page.locator(".figures", has_text="8 tokens").wait_for()
    assert page.locator(".message.assistant .text").inner_text() == first
    choose_settings(page, max_tokens=4000, temperature=0)
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
    page.get_by_label("Conversation", exact=True).first.select_option(label="Another question")
    page.locator(".message.user", has_text="Another question").wait_for()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Cancel").click()
    assert page.locator("option", has_text="Another question").count() == 1
    act(page, "Delete", "Delete")
    page.locator("option", has_text="Another question").wait_for(state="detached")


def test_two_settings_answer_side_by_side(visit, service):
    page = visit(service).page
    page.get_by_role("button", name="Side by side").click()
    page.get_by_label("Model", exact=True).nth(1).locator("option").first.wait_for(state="attached")
    for pane, tokens in ((0, 5), (1, 7)):
        page.locator(f".pane >> nth={pane}").locator("input[name=max_tokens]").fill(str(tokens))
        page.locator(f".pane >> nth={pane}").locator("input[name=temperature]").fill("0")  # no early end
    ask(page)
    page.locator(".figures >> nth=0", has_text="5 tokens").wait_for()
    page.locator(".figures >> nth=1", has_text="7 tokens").wait_for()


def test_an_answer_follows_a_json_schema(visit, service):
    page = visit(service).page
    wait_for_models(page)
    open_more(page)
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
    shown = page.locator(".tokens .token")
    tokens, before = shown.all_text_contents(), page.get_by_label("Text to complete").input_value()
    shown.nth(2).click()
    other = page.locator(".alternatives button:enabled").first
    chosen = other.locator("code").inner_text().replace("·", " ").replace("⏎", "\n")
    assert chosen != tokens[2]
    other.click()
    expected = before + "".join(tokens[:2]).replace("⏎\n", "\n") + chosen
    page.wait_for_function("(text) => document.querySelector('textarea').value === text", arg=expected)
    page.locator(".figures", has_text="6 tokens").wait_for()


def test_the_live_view_shows_rates_and_engines(visit, service):
    live, chat = visit(f"{service}/#live").page, visit(service).page
    live.locator(".engine", has_text="0 running").nth(1).wait_for()
    choose_settings(chat, max_tokens=8000, temperature=0)
    ask(chat)
    live.locator(".engine", has_text="1 running").wait_for()
    live.locator("dl div", has_text="Tokens/s out").locator("dd", has_text="0.0").wait_for(state="detached")
    chat.get_by_role("button", name="Stop").click()
    live.locator(".engine", has_text="0 running").nth(1).wait_for()
    live.locator(".engine", has_text="CPU thread").first.wait_for()
    live.locator(".engine", has_text="cached").first.wait_for()


def test_the_trace_of_an_answer_is_one_link_away(visit, service):
    page = visit(service).page
    choose_settings(page, max_tokens=3)
    ask(page)
    page.get_by_role("link", name="trace").click()
    page.locator(".trace tbody tr").nth(2).wait_for()
    assert "tiny" in page.locator(".trace h2").inner_text()
    assert page.locator(".waterfall .bar-part.decode").count() == 1
    assert "sent to" in page.locator(".phases").inner_text()
    page.get_by_role("link", name="All recent requests").click()
    page.locator(".trace tbody tr", has_text="length").first.wait_for()
    page.locator(".trace tbody a").first.click()
    page.locator(".waterfall").wait_for()


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
        wait_for_models(page)
        ask(page, content[:2000])
        page.locator(".figures", has_text="2 tokens").wait_for()
        text = page.locator(".message.assistant .text").text_content()
        assert (
            text == content + "!" if len(content) < 100_000 else text.startswith(content[:100_000] + "… (900,001 more")
        )
        assert page.locator("main img:not(.preview), main script").count() == 0


@pytest.mark.parametrize("content", HOSTILE[:4], ids=["tag", "script", "bidi", "ansi"])
def test_hostile_names_are_shown_as_text(visit, fake_models, content):
    model = replace(fake_models.pop("fake"), name=content)
    model.generator.engines = {content: EngineStats(kv_blocks_total=4)}
    metrics = ServiceMetrics()
    metrics.queued_by(content)[content, 0] = 2
    with served(build_app({content: model}, metrics)) as url:
        page = visit(f"{url}/#live").page
        page.locator(".engine .name").wait_for()
        assert page.locator(".engine .name").text_content() == content
        assert page.locator(".card h2").first.text_content().startswith(content)
        assert content in page.locator("td").all_text_contents()
        assert page.locator("main img:not(.preview), main script").count() == 0
        page.close()  # before its service, whose end it would report


def test_a_key_is_kept_in_memory_only(visit, service):
    page = visit(service).page
    page.get_by_label("API key").fill("ri-secret")
    page.keyboard.press("Enter")
    stored = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert "ri-secret" not in stored
    page.reload()
    assert page.get_by_label("API key").input_value() == ""


def test_tabs_of_one_browser_share_a_stream(visit, service):
    first = visit(f"{service}/#live").page
    first.locator(".engine").first.wait_for()
    others = [first.context.new_page() for _ in range(8)]  # more than a browser's connections to one service
    for page in others:
        page.goto(f"{service}/#live")
    for page in others:
        page.locator(".engine").first.wait_for()
    first.close()
    others[0].locator("#ready", has_text="ready").wait_for()
    others[-1].wait_for_timeout(2500)
    assert others[-1].get_by_text("unreachable").count() == 0


def test_operators_scale_pause_drain_and_reload_after_a_confirmation(visit, service, tiny_model):
    opened = visit(f"{service}/#live")
    opened.expected = ("503",)  # while it is paused
    page = opened.page
    page.get_by_role("button", name="Scale").click()
    page.get_by_role("button", name="Cancel").click()
    act(page, "Pause", "Pause")
    page.locator(".engine", has_text="paused").nth(1).wait_for()
    act(page, "Resume", "Resume")
    page.locator(".engine .good", has_text="running").nth(1).wait_for()
    page.get_by_role("button", name="Drain").first.click()
    page.locator("dialog").get_by_role("button", name="Drain").click()
    page.locator(".marks li", has_text="is gone").first.wait_for(timeout=60_000)
    page.locator(".marks li", has_text="joined").first.wait_for(timeout=60_000)
    page.get_by_role("button", name="Reload").click()
    page.get_by_label("Weights").fill(str(tiny_model))
    page.locator("dialog").get_by_role("button", name="Reload").click()
    page.locator(".card", has_text="Reloading: done").wait_for(timeout=90_000)
    page.get_by_role("button", name="Scale").click()
    page.get_by_label("Engines").fill("2")
    page.locator("dialog").get_by_role("button", name="Scale").click()
    page.locator(".card", has_text="Scaling: done").wait_for(timeout=90_000)


def test_an_answer_goes_on_when_its_engine_is_killed(visit, service, serve_command):
    live, chat = visit(f"{service}/#live").page, visit(service).page
    names = live.locator(".engine .name")
    names.nth(1).wait_for()
    pid_of = engine_pids(serve_command, names.all_text_contents())
    choose_settings(chat, max_tokens=7500, temperature=0)
    ask(chat)
    busy = live.locator(".engine", has_text="1 running").locator(".name")
    busy.wait_for()
    os.kill(pid_of[busy.inner_text()], signal.SIGKILL)
    text = "document.querySelector('.message.assistant .text').textContent.length"
    before = chat.evaluate(f"() => {text}")
    live.locator(".marks li", has_text="1 stream migrated").wait_for()
    live.locator(".marks li.bad", has_text="is gone").first.wait_for()
    chat.wait_for_function(f"before => {text} > before", arg=before)
    chat.locator(".figures", has_text="7500 tokens").wait_for(timeout=120_000)
    chat.get_by_role("link", name="trace").click()
    chat.locator(".phases", has_text="migrates from").wait_for()
    live.locator(".engine", has_text="0 running").nth(1).wait_for(timeout=90_000)


def test_the_page_connects_again_to_a_restarted_router(visit, service, serve_command):
    opened = visit(f"{service}/#live")
    opened.expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "503")
    opened.page.locator("#ready", has_text="ready").wait_for()
    (router,) = listed(serve_command, "router")
    os.kill(router["pid"], signal.SIGKILL)
    opened.page.locator("[role=status]", has_text="unreachable; connecting again").wait_for(timeout=30_000)
    opened.page.locator("#ready.good").wait_for(timeout=60_000)
    opened.page.locator("[role=status]", has_text="Live from 1 router").wait_for(timeout=30_000)


def test_keys_decide_what_a_page_shows(visit, keyed_service):
    opened = visit(f"{keyed_service.url}/#live")
    opened.expected = ("401",)
    page = opened.page
    page.locator("[role=status]", has_text="needs an API key").wait_for()
    enter_key(page, keyed_service.infer)
    page.locator(".engine").wait_for()
    assert page.get_by_role("button", name="Drain").count() == 0
    enter_key(page, keyed_service.operate)
    page.get_by_role("button", name="Drain").wait_for()
    page.goto(f"{keyed_service.url}/#chat")
    enter_key(page, keyed_service.infer)
    choose_settings(page, max_tokens=3)
    ask(page)
    page.locator(".figures", has_text="3 tokens").wait_for()
    page.get_by_role("link", name="API", exact=True).click()
    with page.expect_popup() as linked:
        page.get_by_role("link", name="openapi.json").click()
    assert '"openapi"' in linked.value.locator("body").inner_text()


def enter_key(page, key):
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")


def act(page, label, confirmed):
    page.get_by_role("button", name=label).click()
    page.locator("dialog").get_by_role("button", name=confirmed).click()


def test_tools_are_called_and_answered(visit, fake_models):
    generator = fake_models["fake"].generator
    generator.pieces = ('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',)
    with served(build_app(fake_models, ServiceMetrics())) as url:
        page = visit(url).page
        wait_for_models(page)
        open_more(page)
        function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}
        page.get_by_label("Tools (JSON)").first.fill(json.dumps([{"type": "function", "function": function}]))
        ask(page, "What is 1 + 2?")
        page.locator(".calls", has_text='add({"a": 1, "b": 2})').wait_for()
        generator.pieces = ("It is 3.",)
        page.get_by_label("Result of add").fill("3")
        page.get_by_role("button", name="Send results").click()
        page.locator(".message.assistant", has_text="It is 3.").wait_for()
        assert page.locator(".message.tool", has_text="Result of add").count() == 1
        page.get_by_role("button", name="curl").click()
        assert '"role": "tool"' in page.locator("dialog pre").inner_text()


def test_a_model_of_images_gets_an_image(visit, image_models, tmp_path):
    image = tmp_path / "red.png"
    Image.new("RGB", (32, 32), "red").save(image)
    with served(build_app(image_models, ServiceMetrics())) as url:
        page = visit(url).page
        wait_for_models(page)
        page.get_by_label("Image").first.set_input_files(image)
        page.get_by_role("button", name="Send").click()
        page.locator(".labels li", has_text="%").first.wait_for()
        assert page.locator(".message.user", has_text="Image red.png").count() == 1
        left = "(all) => all.map((each) => each.getBoundingClientRect().left)"
        assert len(set(page.locator(".labels meter").evaluate_all(left))) == 1  # in one column
        assert page.locator(".message.labels").evaluate("(each) => getComputedStyle(each).paddingLeft") == "12px"


def test_the_page_fits_a_narrow_window(visit, service):
    for view in ("chat", "tokens", "live", "requests", "docs"):
        page = visit(f"{service}/#{view}", viewport={"width": 360, "height": 740}).page
        page.locator("#ready", has_text="ready").wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360, view
