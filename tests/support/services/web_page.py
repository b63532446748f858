"""Steps on the web page that its tests share, and texts that a page must not interpret."""

from typing import Any

QUESTION = "What is the capital of France?"
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</div><script>alert(2)</script>",
    "\u202egnp.exe",
    "\x1b[31mred",
    "A" * 1_000_000,
)


def wait_for_models(page: Any) -> None:
    """Wait until a pane lists the models."""
    page.get_by_label("Model", exact=True).first.locator("option").first.wait_for(state="attached")


def choose_settings(page: Any, **values: object) -> None:
    """Fill fields of the first pane."""
    wait_for_models(page)
    for name, value in values.items():
        page.locator(f"input[name={name}]").first.fill(str(value))


def open_more(page: Any) -> None:
    """Open the rarer settings of the first pane."""
    page.locator(".more summary", has_text="More").first.click()


def ask(page: Any, text: str = QUESTION) -> None:
    """Send a message by the keyboard."""
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")
