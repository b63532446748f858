"""State of the page while views change and lists are read again, and what it says when a service fails."""

import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from support.services.served_application import served
from support.services.web_page import ask, choose_settings, wait_for_models

pytestmark = pytest.mark.ui

CHAT, LIST = "**/v1/chat/completions", "**/v1/requests?*"
START_S = 1_800_000_000.0


@pytest.fixture
def page(visit, fake_models):
    with served(build_app(fake_models, ServiceMetrics())) as url:
        opened = visit(url)
        opened.expected = ("404", "503", "ERR_FAILED", "ERR_INCOMPLETE")  # which tests answer with
        wait_for_models(opened.page)
        yield opened.page
        opened.page.close()  # before its service, whose end it would report


def open_view(page, name):
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", name=name, exact=True).wait_for(state="attached")


def test_an_answer_goes_on_while_another_view_is_shown(page, fake_models):
    generator = fake_models["fake"].generator
    generator.blocks_after = 1
    choose_settings(page, seed=3)
    page.get_by_role("button", name="Side by side").click()
    ask(page)
    page.locator(".message.assistant", has_text="Hello").first.wait_for()
    page.get_by_label("Message").fill("A draft")
    open_view(page, "Live")
    open_view(page, "Chat")
    assert page.locator("input[name=seed]").first.input_value() == "3"
    assert page.get_by_label("Message").input_value() == "A draft"
    assert page.locator(".pane").filter(visible=True).count() == 2
    assert generator.aborted == []
    page.get_by_role("button", name="Stop").click()
    page.locator(".figures", has_text="stopped").nth(1).wait_for()
    page.wait_for_function("() => document.activeElement.ariaLabel === 'Message'")


def test_a_page_left_during_an_answer_has_stored_the_question_and_what_had_come(page, fake_models):
    fake_models["fake"].generator.blocks_after = 1
    ask(page)
    page.locator(".message.assistant", has_text="Hello").wait_for()
    page.reload()
    page.locator(".message.user").wait_for()
    assert page.locator(".message.assistant", has_text="Hello").count() == 1


def test_a_conversation_deleted_during_its_answer_stays_deleted(page, fake_models):
    fake_models["fake"].generator.blocks_after = 1
    ask(page)
    page.locator(".message.assistant", has_text="Hello").wait_for()
    title = page.get_by_label("Conversation", exact=True).first.locator("option").first.inner_text()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.locator(".message").first.wait_for(state="detached")
    page.wait_for_timeout(300)  # in which the answer ends
    page.reload()
    wait_for_models(page)
    assert page.locator("option", has_text=title).count() == 0
    assert page.locator(".message").count() == 0


def test_buttons_say_whether_an_answer_comes(page, fake_models):
    send, stop = (page.get_by_role("button", name=name, exact=True) for name in ("Send", "Stop"))
    assert (send.is_enabled(), stop.is_enabled()) == (True, False)
    fake_models["fake"].generator.blocks_after = 1
    ask(page)
    page.locator(".message.assistant", has_text="Hello").wait_for()
    assert (send.is_enabled(), stop.is_enabled()) == (False, True)
    stop.click()
    page.locator(".figures", has_text="stopped").wait_for()
    assert (send.is_enabled(), stop.is_enabled()) == (True, False)


def test_each_view_has_its_title(page):
    for name in ("Tokens", "Live", "Requests", "API", "Chat"):
        open_view(page, name)
        assert page.title() == f"{name} – rayinfer"


def test_an_answer_that_is_cut_off_says_so(page):
    body = 'data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Half"}}]}\n\n'
    page.route(CHAT, lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    ask(page)
    page.get_by_role("alert").filter(has_text="closed before the answer's end").wait_for()
    assert page.locator(".message.assistant .text").inner_text() == "Half"


def test_an_unreachable_service_is_named(page):
    page.route(CHAT, lambda route: route.abort())
    ask(page)
    page.get_by_role("alert").filter(has_text="The service is unreachable.").wait_for()


def test_a_message_waits_for_a_model(visit, fake_models):
    with served(build_app(fake_models, ServiceMetrics())) as url:
        page = visit(f"{url}/docs").page
        page.route("**/v1/models", lambda route: route.fulfill(json={"data": []}))
        page.get_by_role("link", name="Chat").click()
        page.locator(".notice", has_text="No model for this view is served yet.").wait_for()
        ask(page)
        page.get_by_role("alert").filter(has_text="the message waits in its field").wait_for()
        assert page.get_by_label("Message").input_value() == "What is the capital of France?"
        page.close()


def listed(number, **changed):
    times = {"received_s": START_S + number, "queue_s": 0.25, "first_token_s": 0.5, "total_s": None}
    tokens = {"prompt_tokens": 10, "cached_tokens": 0, "output_tokens": 1, "migrations": 0, "preemptions": 0}
    rest = {"id": f"cmpl-{number}", "model": "fake", "tenant": "", "state": "running", "finish_reasons": []}
    return times | tokens | rest | {"engines": ["e1"]} | changed


def test_a_list_that_is_read_again_keeps_the_focus(page):
    rows = [listed(number) for number in range(30, 0, -1)]
    page.route(LIST, lambda route: route.fulfill(json={"data": rows}))
    open_view(page, "Requests")
    page.locator("tbody tr").nth(29).wait_for()
    page.get_by_role("link", name="cmpl-7", exact=True).focus()
    del rows[-1]
    rows[23] = listed(7, state="finished", finish_reasons=["stop"])
    rows.insert(0, listed(31))
    page.get_by_role("link", name="cmpl-31", exact=True).wait_for()
    page.locator("tbody tr", has_text="stop").wait_for()
    assert page.evaluate("() => document.activeElement.textContent") == "cmpl-7"
    shown = page.locator("tbody a").all_inner_texts()
    assert shown == [row["id"] for row in rows]


def test_a_list_is_read_again_after_a_failure(page):
    answers = [{"status": 503, "json": {"error": {"message": "Draining."}}}, {"json": {"data": []}}]
    page.route(LIST, lambda route: route.fulfill(**(answers.pop(0) if answers else {"json": {"data": [listed(1)]}})))
    open_view(page, "Requests")
    notice = page.locator(".trace [role=status]")
    for text in ("Draining.", "No request has come", "The latest requests"):
        notice.filter(has_text=text).wait_for()
    assert page.locator("tbody tr").count() == 1


def test_requests_of_one_id_are_both_listed(page):
    rows = [listed(2, id="mine"), listed(1, id="mine")]
    page.route(LIST, lambda route: route.fulfill(json={"data": rows}))
    open_view(page, "Requests")
    page.locator("tbody tr").nth(1).wait_for()


def test_a_trace_is_followed_after_a_failure(page):
    events = [{"name": "received", "time_s": START_S, "details": {}}]
    trace = {"id": "cmpl-1", "model": "fake", "events": events, "num_events_dropped": 0}
    answers = [{"json": {"data": [trace]}}, {"status": 503, "json": {"error": {"message": "Draining."}}}]
    page.route("**/trace", lambda route: route.fulfill(**(answers.pop(0) if answers else {"json": {"data": [trace]}})))
    page.evaluate("() => { location.hash = '#requests/cmpl-1'; }")
    page.locator(".trace tbody tr").wait_for()
    page.locator(".trace summary").click()
    page.get_by_role("alert").filter(has_text="Draining.").wait_for()
    events.append({"name": "finished", "time_s": START_S + 1, "details": {}})
    page.get_by_text("2 events in 1.00 s").wait_for()
    assert page.get_by_role("alert").filter(has_text="Draining.").count() == 0
    assert page.locator(".trace details").evaluate("(each) => each.open") is False  # as the reader left it


def test_paths_are_filtered_in_place(page):
    open_view(page, "API")
    first = page.locator(".operations summary", has_text="/v1/chat/completions").first
    first.click()
    page.get_by_label("Filter paths").fill("chat/completions")
    assert page.locator(".operations details[open]").count() == 1
    page.get_by_label("Filter paths").fill("nothing like it")
    page.get_by_text("No path has that").wait_for()
    assert page.locator(".operations details").filter(visible=True).count() == 0
