import re

import pytest

from rayinfer.servers.web import pages

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
MAX_PAGE_BYTES = 200_000


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_browser_gets_the_web_page(client, path):
    response = await client.get(path, headers=BROWSER)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert '<base href="/">' in response.text


async def test_every_file_of_the_page_is_served_and_small(client):
    page = (await client.get("/", headers=BROWSER)).text
    wanted, found = set(re.findall(r'(?:src|href)="(ui/[^"]+)"', page)), {}
    while missing := wanted - set(found):
        name = missing.pop()
        response = await client.get(f"/{name}")
        assert response.status_code == 200, name
        found[name] = response
        wanted |= {f"ui/{module}" for module in re.findall(r'(?:from |import\()"\./([\w.]+)"', response.text)}
    assert {"ui/style.css", "ui/main.js", "ui/chat.js", "ui/live.js", "ui/tokens.js"} <= set(found)
    assert sum(len(response.content) for response in found.values()) < MAX_PAGE_BYTES
    for name, response in found.items():
        assert "<script" not in response.text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", response.text), name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", response.text), name


@pytest.mark.parametrize(
    "path", ["/ui/", "/ui/nothing.js", "/ui/index.html", "/ui/..%2fpages.py", "/ui/__init__.py", "/ui/%00.js"]
)
async def test_other_files_are_not_there(client, path):
    assert (await client.get(path)).status_code == 404


async def test_an_unchanged_file_is_not_sent_again(client):
    first = await client.get("/ui/main.js")
    again = await client.get("/ui/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_prefix_of_the_application_is_the_base():
    assert b'<base href="/a&quot;b/">' in pages.web_page('/a"b').body
