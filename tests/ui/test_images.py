"""Images in the playground: chosen, dropped, pasted and taken away, what is refused, sent, kept and exported."""

import base64
import json
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
from PIL import Image

from rayinfer.images.prompts import ImagePrompts
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from rayinfer.servers.request_limits import RequestLimits
from support.fakes.fake_generator import FakeGenerator
from support.faults.cli_processes import serving
from support.services.served_application import served
from support.services.web_page import ask, wait_for_models
from support.tiny_models.tiny_vision import encoded, make_tiny_vision_model, picture_of

pytestmark = pytest.mark.ui

CHAT = "**/v1/chat/completions"
PNG = encoded(picture_of(60, 40))
SCRIPT_NAME = "<img src=x onerror=alert(1)>.png"


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory):
    return make_tiny_vision_model(tmp_path_factory.mktemp("tiny-vision"), family="smolvlm")


@pytest.fixture
def models(fake_models, vision_folder):
    """A model that reads images, and one that reads text only, after it."""
    prompts = ImagePrompts.from_folder(vision_folder)
    vision = replace(
        fake_models["fake"],
        name="vision",
        generator=FakeGenerator(max_model_len=100_000, takes_images=True),
        image_prompts=prompts,
    )
    return {"vision": vision, "text": replace(fake_models["fake"], name="text")}


@pytest.fixture
def page(visit, models):
    with served(build_app(models, ServiceMetrics())) as url:
        page = visit(url).page
        page.bodies = record_bodies(page)
        wait_for_models(page)
        adding(page).wait_for()
        yield page
        page.close()


def record_bodies(page):
    """Answer chats by one word, and return the bodies that come."""
    bodies = []
    chunk = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Seen"}}]}

    def answer(route):
        bodies.append(route.request.post_data_json)
        route.fulfill(body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    page.route(CHAT, answer)
    return bodies


def adding(page):
    return page.get_by_role("button", name="Add images")


def files(*contents, name="photo.png", kind="image/png"):
    return [{"name": name, "mimeType": kind, "buffer": content} for content in contents]


def add(page, *contents, **settings):
    page.get_by_label("Image files").first.set_input_files(files(*contents, **settings))


def drop(page, kind, selector, *contents, name="photo.png", mime="image/png"):
    """Let an event of the browser bring files to an element."""
    page.locator(selector).first.evaluate(
        """(element, [kind, contents, name, type]) => {
            const data = new DataTransfer();
            for (const each of contents) {
                data.items.add(new File([Uint8Array.from(atob(each), (one) => one.charCodeAt(0))], name, { type }));
            }
            const init = { bubbles: true, cancelable: true };
            if (kind === "paste") element.dispatchEvent(new ClipboardEvent(kind, { ...init, clipboardData: data }));
            else element.dispatchEvent(new DragEvent(kind, { ...init, dataTransfer: data }));
        }""",
        [kind, [base64.b64encode(each).decode() for each in contents], name, mime],
    )


def thumbnails(page):
    return page.locator(".composer .shots img")


def image_part(content=PNG, kind="png"):
    url = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def wait_for_answers(page, count=1):
    page.locator(".message.assistant", has_text="Seen").nth(count - 1).wait_for()


def test_a_vision_model_reads_an_image_from_the_page(visit, vision_folder, tmp_path):
    from axe_playwright_python.sync_playwright import Axe

    options = ("--num-kv-blocks", 200, "--num-threads", 1, "--name", "eye", "--dtype", "float32")
    with serving(vision_folder, *options, cache=tmp_path) as command:
        command.wait_for_line("ready: eye", within_s=500)
        for theme, width in (("light", 1280), ("dark", 390)):
            page = visit(
                command.url, color_scheme=theme, viewport={"width": width, "height": 900}, bypass_csp=True
            ).page
            wait_for_models(page)
            page.locator("input[name=max_tokens]").evaluate("(each) => { each.value = 4; }")
            add(page, PNG)
            thumbnails(page).wait_for()
            found = Axe().run(page).response["violations"]
            assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
            ask(page, "What is this?")
            figures = page.locator(".figures", has_text="in the prompt")
            figures.wait_for()
            num_tokens = int(figures.inner_text().split(" in the prompt")[0].split()[-1])
            assert num_tokens > 7 * 9  # of each tile of the image: 3 x 2 and the whole
            shown = page.locator(".message.user img")
            shown.evaluate("(each) => each.decode()")
            assert shown.evaluate("(each) => [each.naturalWidth, each.naturalHeight]") == [60, 40]
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_text_models_get_no_images(visit, fake_models):
    with served(build_app(fake_models, ServiceMetrics())) as url:
        page = visit(url).page
        loaded = []
        page.on("request", lambda request: loaded.append(request.url))
        page.reload()
        wait_for_models(page)
        ask(page)
        page.locator(".message.assistant", has_text="Hello").wait_for()
        assert adding(page).count() == 0
        assert not any("attachments.js" in each for each in loaded)


def test_images_are_chosen_dropped_and_pasted_and_sent_before_the_text(page):
    jpeg = encoded(picture_of(30, 50), "JPEG")
    webp = encoded(picture_of(50, 30), "WEBP")
    add(page, PNG)
    drop(page, "drop", ".log", jpeg, name="a.jpg", mime="image/jpeg")
    drop(page, "paste", ".composer textarea", webp, name="image.webp", mime="image/webp")
    thumbnails(page).nth(2).wait_for()
    ask(page, "Compare.")
    wait_for_answers(page)
    parts = [image_part(), image_part(jpeg, "jpeg"), image_part(webp, "webp"), {"type": "text", "text": "Compare."}]
    assert page.bodies[0]["messages"] == [{"role": "user", "content": parts}]
    assert thumbnails(page).count() == 0
    assert page.locator(".message.user img").count() == 3


def test_an_image_is_taken_away_by_the_keyboard(page):
    add(page, PNG, encoded(picture_of(20, 20)))
    remove = page.get_by_role("button", name="Remove photo.png")
    remove.nth(1).wait_for()
    remove.first.focus()
    page.keyboard.press("Enter")
    assert thumbnails(page).count() == 1
    assert page.evaluate("() => document.activeElement.ariaLabel") == "Remove photo.png"
    page.keyboard.press("Enter")
    page.locator(".composer .shots").wait_for(state="hidden")
    assert page.evaluate("() => document.activeElement.ariaLabel") == "Message"


def animated(kind):
    frames = [picture_of(20, 20), picture_of(20, 20, 1)]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


REFUSED = {
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", "is no PNG, JPEG or WebP image"),
    "large": (b"\x89PNG\r\n\x1a\n" + bytes(50 * 2**20), "has 50 MiB: an image may have 10 MiB"),
    "cut off": (PNG[: len(PNG) // 2], "is broken"),
    "no header": (PNG[:10], "is broken"),
    "bomb": (PNG[:16] + b"\x00\x04\xd3\xd4" * 2 + PNG[24:], "316372 × 316372 pixels: an image may have 8192 a side"),
    "animated PNG": (animated("PNG"), "several frames"),
    "animated WebP": (animated("WEBP"), "several frames"),
    "empty": (b"", "is no PNG, JPEG or WebP image"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_the_service_would_refuse_is_not_added(page, tmp_path, kind):
    content, message = REFUSED[kind]
    path = tmp_path / "photo.png"  # playwright takes large files from disk only
    path.write_bytes(content)
    page.get_by_label("Image files").first.set_input_files(path)
    page.locator(".composer .error", has_text=message).wait_for()
    assert thumbnails(page).count() == 0
    add(page, PNG)
    thumbnails(page).wait_for()
    assert page.locator(".composer .error").count() == 0


def test_names_of_files_are_text(page):
    add(page, PNG, name=SCRIPT_NAME)
    page.locator(".composer figcaption", has_text=SCRIPT_NAME).wait_for()
    ask(page)
    page.locator(".message.user figcaption", has_text=SCRIPT_NAME).wait_for()
    add(page, b"<svg/>", name=SCRIPT_NAME)
    page.locator(".composer .error", has_text=SCRIPT_NAME).wait_for()


def test_a_request_has_as_many_images_as_the_service_takes(visit, models):
    app = build_app(models, ServiceMetrics(), request_limits=RequestLimits(max_images=3, max_image_side=60))
    with served(app) as url:
        page = visit(url).page
        bodies = record_bodies(page)
        wait_for_models(page)
        add(page, *[PNG] * 5)
        page.locator(".composer .error", has_text="3 images: 2 more are not added").wait_for()
        add(page, encoded(picture_of(61, 10)))
        page.locator(".composer .error").wait_for()
        page.get_by_role("button", name="Remove photo.png").first.click()
        add(page, encoded(picture_of(61, 10)))
        page.locator(".composer .error", has_text="61 × 10 pixels: an image may have 60 a side").wait_for()
        ask(page)
        wait_for_answers(page)
        add(page, PNG, PNG)
        thumbnails(page).nth(1).wait_for()
        ask(page, "And these?")
        page.locator(".log .error", has_text="with those of earlier messages: these are 4").wait_for()
        assert page.get_by_label("Message").input_value() == "And these?"
        assert (thumbnails(page).count(), len(bodies)) == (2, 1)
        page.close()


def test_an_edited_message_keeps_its_images_and_gets_others(page):
    add(page, PNG)
    thumbnails(page).wait_for()
    ask(page, "First")
    wait_for_answers(page)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("Second")
    other = encoded(picture_of(24, 24))
    drop(page, "drop", ".edited", other)
    page.locator(".edited .shots img").nth(1).wait_for()
    assert thumbnails(page).count() == 0  # of the next message
    page.get_by_role("button", name="Send again").click()
    page.locator(".message.user", has_text="Second").wait_for()
    wait_for_answers(page)
    parts = [image_part(), image_part(other), {"type": "text", "text": "Second"}]
    assert page.bodies[1]["messages"] == [{"role": "user", "content": parts}]
    page.get_by_role("button", name="Regenerate").click()
    page.wait_for_function("() => document.querySelector('.log').ariaBusy === 'false'")
    wait_for_answers(page)
    assert page.bodies[2]["messages"] == page.bodies[1]["messages"]


def test_an_image_alone_is_a_message(page):
    add(page, PNG)
    page.get_by_role("button", name="Send").click()
    wait_for_answers(page)
    assert page.bodies[0]["messages"][0]["content"] == [image_part()]


def test_side_by_side_a_text_model_gets_the_text_and_says_so(page):
    page.get_by_role("button", name="Side by side").click()
    page.get_by_label("Model", exact=True).nth(1).locator("option").nth(1).wait_for(state="attached")
    page.get_by_label("Model", exact=True).nth(1).select_option("text")
    add(page, PNG)
    thumbnails(page).wait_for()
    ask(page, "What is this?")
    wait_for_answers(page, 2)
    contents = {body["model"]: body["messages"][0]["content"] for body in page.bodies}
    assert contents == {"vision": [image_part(), {"type": "text", "text": "What is this?"}], "text": "What is this?"}
    note = page.get_by_text("This model reads text only: images are not sent to it.")
    assert note.count() == 1
    page.get_by_label("Model", exact=True).nth(1).select_option("vision")
    note.wait_for(state="detached")


def test_a_conversation_keeps_its_images_in_the_browser(page):
    add(page, PNG)
    thumbnails(page).wait_for()
    ask(page, "Keep this")
    wait_for_answers(page)
    page.wait_for_function("() => localStorage.length > 1")
    page.reload()
    page.locator(".message.user img").wait_for()
    wait_for_models(page)
    adding(page).wait_for()
    page.get_by_role("button", name="Regenerate").click()
    page.wait_for_function("() => document.querySelector('.log').ariaBusy === 'false'")
    assert page.bodies[1]["messages"][0]["content"] == [image_part(), {"type": "text", "text": "Keep this"}]


def noise(side):
    return Image.effect_noise((side, side), 100)


def test_images_beyond_the_browsers_storage_are_dropped_with_a_note(page):
    large = encoded(noise(1100))
    assert len(large) > 750_000
    add(page, large, name="large.png")
    thumbnails(page).wait_for()
    ask(page, "Keep the text")
    wait_for_answers(page)
    page.wait_for_function("() => localStorage.length > 1")
    page.reload()
    page.locator(".message.user", has_text="Not kept by this browser").wait_for()
    assert page.locator(".message.user figcaption").inner_text() == "large.png"
    wait_for_models(page)
    adding(page).wait_for()
    page.get_by_role("button", name="Regenerate").click()
    page.wait_for_function("() => document.querySelector('.log').ariaBusy === 'false'")
    assert page.bodies[1]["messages"][0]["content"] == "Keep the text"


def test_images_of_older_conversations_make_room_before_their_texts(page):
    image = encoded(noise(800))
    for number in range(7):  # of 0.85 million characters each, in 5 million
        page.get_by_role("button", name="New chat").click()
        add(page, image)
        thumbnails(page).wait_for()
        ask(page, f"Question {number}")
        wait_for_answers(page)
        page.wait_for_function(
            "(text) => JSON.parse(localStorage.getItem('rayinfer.conversation-index') ?? '[]')[0]?.title === text",
            arg=f"Question {number}",
        )
    picker = page.locator(".conversations select")
    options = picker.locator("option")
    assert options.all_inner_texts() == [f"Question {number}" for number in reversed(range(7))]
    picker.select_option(label="Question 0")
    page.locator(".message.user", has_text="Not kept by this browser").wait_for()
    picker.select_option(label="Question 6")
    page.locator(".message.user img").wait_for()


def test_exports_read_images_from_files(page, tmp_path):
    folder, name = tmp_path / "photos", "my 'cat'; touch x.png"
    folder.mkdir()
    add(page, PNG, name=name)
    thumbnails(page).wait_for()
    ask(page, "What's $HOME `x`?")
    wait_for_answers(page)
    (folder / name).write_bytes(PNG)
    sent = page.bodies[0]["messages"] + [{"role": "assistant", "content": "Seen"}]
    page.get_by_role("button", name="curl").click()
    command = page.locator("dialog pre").inner_text()
    assert base64.b64encode(PNG).decode() not in command
    assert page.locator("dialog", has_text="Images are read from files of their names.").count() == 1
    page.get_by_role("button", name="Close").click()
    before, after = command.split("| curl -N")
    written = subprocess.run(["sh", "-c", before], cwd=folder, capture_output=True, check=True, timeout=60)
    assert json.loads(written.stdout)["messages"] == sent
    assert shlex.split(after)[-2:] == ["-d", "@-"]
    assert [each.name for each in folder.iterdir()] == [name]
    page.get_by_role("button", name="Python").click()
    program = page.locator("dialog pre").inner_text()
    stand_in = (
        "import json, sys, types\n"
        "def create(**given):\n    print(json.dumps(given['messages']))\n    return []\n"
        "chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=create))\n"
        "sys.modules['openai'] = types.SimpleNamespace(OpenAI=lambda **_: types.SimpleNamespace(chat=chat))\n"
    )
    run = [sys.executable, "-c", stand_in + program]
    written = subprocess.run(run, cwd=folder, capture_output=True, check=True, timeout=60)
    assert json.loads(written.stdout) == sent
