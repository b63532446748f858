"""Live view and request explorer over given samples and traces."""

import json

import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from support.services.served_application import served
from support.services.web_page import HOSTILE

pytestmark = pytest.mark.ui

BOUNDS = [0.1, 0.2, 0.4]
START_S = 1_800_000_000.0
DRAWN = """(canvas, color) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let at = 0; at < data.length; at += 4) if (color.every((each, index) => data[at + index] === each)) found += 1;
    return found;
}"""

ROWS = """(canvas, color) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), rows = [];
    for (let at = 0; at < data.length; at += 4) {
        if (color.every((each, index) => data[at + index] === each)) rows.push(Math.floor(at / 4 / canvas.width));
    }
    return rows;
}"""


@pytest.fixture
def fake_service(fake_models):
    with served(build_app(fake_models, ServiceMetrics())) as url:
        yield url


def engine(**changed):
    counts = {"running": 2, "waiting": 1, "kv_blocks_used": 10, "kv_blocks_cached": 20, "kv_blocks_total": 40}
    about = {"state": "running", "device": "4 CPU threads", "kernels": "avx2", "max_num_seqs": 8, "preemptions": 0}
    return about | counts | changed


def model(**changed):
    histogram = {"bounds": BOUNDS, "counts": [0, 0, 0, 0]}
    counters = {"prompt_tokens": 0, "cached_prompt_tokens": 0, "generation_tokens": 0, "migrations": 0, "rejected": {}}
    rest = {"ready": True, "reason": None, "waiting": 0, "first_token": histogram, "inter_token": histogram}
    return counters | rest | {"engines": {"e1": engine(), "e2": engine()}, "queue": [], "scaling": []} | changed


def show_samples(page, *models, name="fake", may_operate=False):
    """Answer `/live` by samples of one model, a second apart."""
    samples = [
        {"time_s": START_S + second, "num_routers": 2, "may_operate": may_operate, "models": {name: each}}
        for second, each in enumerate(models)
    ]
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in samples)
    page.route("**/live", lambda route: route.fulfill(body=text, content_type="text/event-stream"))
    page.get_by_role("link", name="Live").click()
    page.locator("[role=status]", has_text="Live from 2 routers").wait_for()


def tile(page, label):
    return page.locator("dl div", has_text=label).locator("dd").inner_text()


def test_figures_are_of_what_came_between_samples(visit, fake_service):
    page = visit(fake_service).page
    later = model(
        generation_tokens=100,
        prompt_tokens=40,
        cached_prompt_tokens=10,
        waiting=4,
        rejected={"queue_full": 3},
        first_token={"bounds": BOUNDS, "counts": [0, 10, 0, 0]},
        inter_token={"bounds": BOUNDS, "counts": [10, 0, 0, 0]},
    )
    show_samples(page, model(), later)
    shown = {
        label: tile(page, label) for label in ("Tokens/s out", "Tokens/s in", "TTFT", "Inter-token", "Prefix hits")
    }
    assert shown == {
        "Tokens/s out": "100.0",
        "Tokens/s in": "40.0",
        "TTFT": "150 / 195 ms",
        "Inter-token": "50 / 95 ms",
        "Prefix hits": "25 %",
    }
    assert [tile(page, label) for label in ("Running", "Waiting", "Refused")] == ["4", "6", "3"]


def test_engines_are_strips_of_their_batch_and_blocks(visit, fake_service):
    page = visit(fake_service).page
    show_samples(page, model())
    row = page.locator(".engine").first
    assert row.locator(".strip-text").all_inner_texts() == [
        "2 running of 8, 1 waiting",
        "10 in use, 20 cached, 10 free",
    ]
    assert "4 CPU threads · avx2 kernels" in row.inner_text()
    bar = row.locator(".bar").nth(1)
    widths = bar.locator(".part").evaluate_all("(parts) => parts.map((each) => each.getBoundingClientRect().width)")
    assert [round(width / sum(widths), 2) for width in widths] == [0.25, 0.5, 0.25]


def test_charts_have_lines_and_marks(visit, fake_service):
    opened = visit(fake_service, color_scheme="light")
    opened.expected = ("Canvas2D",)  # the test reads the pixels, more than once
    page = opened.page
    show_samples(page, model(), model(generation_tokens=100, prompt_tokens=40), model(migrations=1))
    chart = page.locator("canvas").first
    blue, orange, brown = [36, 86, 200], [176, 84, 10], [138, 75, 0]
    assert all(chart.evaluate(DRAWN, color) > 0 for color in (blue, orange, brown))
    assert page.locator("canvas").nth(1).evaluate(DRAWN, blue) == 0  # no first token came


def test_latencies_of_different_sizes_are_both_above_the_axis(visit, fake_service):
    opened = visit(fake_service, color_scheme="light")
    opened.expected = ("Canvas2D",)
    page = opened.page
    times = [
        {
            "first_token": {"bounds": [10, 20], "counts": [0, count, 0]},
            "inter_token": {"bounds": [0.02, 0.03], "counts": [0, count, 0]},
        }
        for count in (0, 5, 9, 12)
    ]
    show_samples(page, *(model(**each) for each in times))
    chart = page.locator("canvas").nth(1)
    rows = chart.evaluate(ROWS, [176, 84, 10])
    assert len(rows) > 0
    axis = chart.evaluate("(canvas) => canvas.height") - 18
    assert max(rows) < axis - 5
    left = chart.evaluate("(canvas) => [...canvas.getContext('2d').getImageData(0, 0, 2, canvas.height).data]")
    assert not any(left)  # the numbers of the axis are whole


def test_changes_are_listed_as_events(visit, fake_service):
    page = visit(fake_service).page
    show_samples(
        page,
        model(),
        model(engines={"e1": engine(state="dead", preemptions=2), "e3": engine()}, migrations=2),
        model(engines={"e1": engine(state="dead", preemptions=4), "e3": engine()}, ready=False, reason="paused"),
    )
    events = [text.split(" ", 1)[1] for text in page.locator(".marks li").all_inner_texts()]
    assert events == [
        "not ready: paused",
        "engine e1 preempted 2 requests",
        "2 streams migrated",
        "engine e3 joined",
        "engine e1 is dead",
        "engine e2 is gone",
    ]
    assert page.locator(".marks li.bad").count() == 3


def test_events_name_the_end_of_a_long_name(visit, fake_service):
    page = visit(fake_service).page
    show_samples(page, model(), model(engines={"rayinfer-engine-0-smollm2-zz8p1q0x": engine()}))
    assert page.locator(".marks li", has_text="engine …0-smollm2-zz8p1q0x joined").count() == 1


def test_scaling_decisions_are_shown_with_their_reasons(visit, fake_service):
    page = visit(fake_service).page
    decision = {"time_s": START_S + 1, "before": 2, "after": 3, "reason": "the queue is long"}
    show_samples(page, model(), model(scaling=[decision]))
    decisions = page.get_by_label("Autoscaling decisions")
    assert "2 to 3 engines: the queue is long" in decisions.inner_text()
    assert "2 to 3 engines" in page.get_by_label("Events").inner_text()


@pytest.mark.parametrize("content", HOSTILE[:4], ids=["tag", "script", "bidi", "ansi"])
def test_queues_are_listed_by_priority_and_tenant(visit, fake_service, content):
    page = visit(fake_service).page
    show_samples(page, model(queue=[{"tenant": content, "priority": 2, "waiting": 1234}]))
    assert page.locator("td").all_text_contents() == ["2", content, "1,234"]
    assert page.locator("main img:not(.preview), main script").count() == 0


@pytest.mark.parametrize(
    ("waiting", "text"),
    [(0, "No request waits."), (1, "Empty. 1 request waits in engines."), (4, "Empty. 4 requests wait in engines.")],
)
def test_an_empty_queue_says_what_waits_in_engines(visit, fake_service, waiting, text):
    page = visit(fake_service).page
    show_samples(page, model(engines={"e1": engine(waiting=waiting), "e2": engine(waiting=0)}))
    page.get_by_text(text, exact=True).wait_for()
    assert page.locator("dl div", has_text="Waiting").locator("dd").inner_text() == str(waiting)


@pytest.mark.parametrize(("may_operate", "num_actions"), [(False, 0), (True, 2)])
def test_operators_alone_have_actions(visit, fake_service, may_operate, num_actions):
    page = visit(fake_service).page
    show_samples(page, model(), may_operate=may_operate)
    page.locator(".engine").nth(1).wait_for()
    assert page.get_by_role("button", name="Drain").count() == num_actions
    assert page.get_by_role("button", name="Pause").count() == num_actions // 2


def test_nothing_is_done_without_a_confirmation(visit, fake_service):
    page = visit(fake_service).page
    sent = []
    page.on("request", lambda request: sent.append(request.url) if "/operations/" in request.url else None)
    show_samples(page, model(), may_operate=True)
    for name in ("Pause", "Scale", "Reload", "Drain"):
        page.get_by_role("button", name=name).first.click()
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")
    assert sent == []


def request_row(**changed):
    times = {"received_s": START_S, "queue_s": 0.25, "first_token_s": 0.5, "total_s": 2.0}
    tokens = {"prompt_tokens": 1000, "cached_tokens": 64, "output_tokens": 20}
    rest = {"id": "cmpl-1", "model": "fake", "tenant": "", "state": "finished", "finish_reasons": ["stop"]}
    return times | tokens | rest | {"engines": ["e1", "e2"], "migrations": 1, "preemptions": 0} | changed


def show_requests(page, *rows):
    body = json.dumps({"data": rows})
    page.route("**/v1/requests?*", lambda route: route.fulfill(body=body, content_type="application/json"))
    page.get_by_role("link", name="Requests").click()
    page.locator(".trace tbody tr").first.wait_for()


def test_recent_requests_are_listed_with_their_times(visit, fake_service):
    page = visit(fake_service).page
    show_requests(page, request_row())
    cells = page.locator(".trace tbody td").all_inner_texts()[1:]
    assert cells == ["cmpl-1", "fake", "stop", "1,000", "64", "20", "250 ms", "500 ms", "2.00 s", "2, 1 migration"]


@pytest.mark.parametrize("content", HOSTILE, ids=["tag", "script", "bidi", "ansi", "large"])
def test_hostile_requests_are_shown_as_text(visit, fake_service, content):
    page = visit(fake_service).page
    show_requests(page, request_row(id=content, model=content[:99], tenant=content[:99], prompt=content[:500]))
    assert page.locator(".trace .prompt").text_content() == content[:500]
    events = [
        {"name": "received", "time_s": START_S, "details": {"tenant": content[:99]}},
        {"name": "dispatched", "time_s": START_S + 1, "details": {"engine": content[:99], "why": content[:99]}},
        {"name": "finished", "time_s": START_S + 2, "details": {}},
    ]
    trace = json.dumps({"data": [{"id": content, "model": content[:99], "events": events, "num_events_dropped": 0}]})
    page.route("**/trace", lambda route: route.fulfill(body=trace, content_type="application/json"))
    page.locator(".trace tbody a").click()
    page.locator(".waterfall").wait_for()
    assert content[:99] in page.locator(".phases").text_content()
    assert page.locator("main img:not(.preview), main script").count() == 0
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280


def test_the_trace_of_a_running_request_grows(visit, fake_service):
    page = visit(fake_service).page
    events = [{"name": "received", "time_s": START_S, "details": {}}]

    def answer(route):
        route.fulfill(json={"data": [{"id": "cmpl-1", "model": "fake", "events": events, "num_events_dropped": 0}]})

    page.route("**/trace", answer)
    page.goto(f"{fake_service}/#requests/cmpl-1")
    page.locator(".trace tbody tr").wait_for()
    events.append({"name": "dispatched", "time_s": START_S + 1, "details": {"engine": "e1", "why": "only"}})
    page.locator(".phases li", has_text="now: sent to e1 (the only engine)").wait_for()
    events.append({"name": "finished", "time_s": START_S + 2, "details": {}})
    page.locator(".trace tbody tr").nth(2).wait_for()
    assert page.locator(".phases li", has_text="now").count() == 0


def test_a_waterfall_shows_that_a_lost_engine_has_run(visit, fake_service):
    page = visit(fake_service).page
    named = [
        ("received", {}),
        ("dispatched", {"engine": "e1", "why": "only"}),
        ("migrated", {"engine": "e1", "reason": "engine lost", "output_tokens": 57}),
        ("dispatched", {"engine": "e2", "why": "only"}),
        ("finished", {}),
    ]
    events = [{"name": name, "time_s": START_S + at, "details": details} for at, (name, details) in enumerate(named)]
    trace = {"id": "cmpl-1", "model": "fake", "events": events, "num_events_dropped": 0}
    page.route("**/trace", lambda route: route.fulfill(json={"data": [trace]}))
    page.goto(f"{fake_service}/#requests/cmpl-1")
    page.locator(".waterfall").wait_for()
    assert [" ".join(text.split()) for text in page.locator(".phases li").all_inner_texts()] == [
        "waits in the router 1.00 s",
        "ran on e1, 57 tokens by then 1.00 s",
        "migrates from e1 (engine lost) 1.00 s",
        "sent to e2 (the only engine) 1.00 s",
    ]


def test_a_waterfall_shows_each_phase(visit, fake_service):
    page = visit(fake_service).page
    named = [
        ("received", {}),
        ("dispatched", {"engine": "e1", "why": "most of its prefix is cached"}),
        ("queued", {}),
        ("admitted", {"cached_tokens": 64}),
        ("prefill_chunk", {"start": 64, "end": 128}),
        ("first_token", {}),
        ("preempted", {}),
        ("resumed", {}),
        ("migrated", {"engine": "e1", "reason": "engine lost"}),
        ("first_token", {}),
        ("finished", {}),
    ]
    events = [{"name": name, "time_s": START_S + at, "details": details} for at, (name, details) in enumerate(named)]
    trace = json.dumps({"data": [{"id": "cmpl-1", "model": "fake", "events": events, "num_events_dropped": 0}]})
    page.route("**/trace", lambda route: route.fulfill(body=trace, content_type="application/json"))
    page.goto(f"{fake_service}/#requests/cmpl-1")
    page.locator(".waterfall").wait_for()
    assert [" ".join(text.split()) for text in page.locator(".phases li").all_inner_texts()] == [
        "waits in the router 1.00 s",
        "sent to e1 (most of its prefix is cached) 1.00 s",
        "waits in the engine 1.00 s",
        "prefill of tokens 64 to 128 1.00 s",
        "computes the first token 1.00 s",
        "decodes 1.00 s",
        "preempted 1.00 s",
        "goes on 1.00 s",
        "migrates from e1 (engine lost) 1.00 s",
        "decodes 1.00 s",
    ]
    assert page.locator(".bar-part.stall").count() == 2
    lefts = page.locator(".bar-part").evaluate_all("(parts) => parts.map((each) => each.getBoundingClientRect().left)")
    assert lefts == sorted(lefts)


@pytest.mark.parametrize(("width", "in_a_line"), [(1280, 9), (1000, 3)])
def test_figures_fill_their_lines(visit, fake_service, width, in_a_line):
    page = visit(fake_service, viewport={"width": width, "height": 900}).page
    show_samples(page, model())
    tops = page.locator("dl div").evaluate_all("(tiles) => tiles.map((each) => each.getBoundingClientRect().top)")
    assert [tops.count(top) for top in sorted(set(tops))] == [in_a_line] * (9 // in_a_line)
