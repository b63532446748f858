"""Fetching of images: allowed hosts, addresses, redirects and bounds."""

import asyncio
import time

import pytest

from rayinfer.errors import BadImage, ConfigError, InvalidParameter
from rayinfer.images.fetching.media_fetcher import MAX_FETCHES, MediaFetcher
from rayinfer.images.fetching.media_settings import MediaSettings
from support.services.image_host import FakeResolver, answer, image_host

LOCAL = ["127.0.0.1"]
PUBLIC = ["203.0.114.9"]


def fetcher(*names, private=True, resolver=None):
    settings = MediaSettings(allowed_domains=names, allows_private_networks=private)
    return MediaFetcher(settings, resolver or FakeResolver({"images.test": [LOCAL], "other.test": [LOCAL]}))


async def fetch(used, *urls, max_bytes=1000):
    return await used.fetch(urls, "messages", max_bytes=max_bytes)


async def test_images_are_fetched_each_once():
    async with image_host(a=answer(b"one"), b=answer(b"two")) as host:
        used = fetcher(host.name)
        found = await fetch(used, host.url("/a"), host.url("/b"), host.url("/a"))
        assert found == {host.url("/a"): b"one", host.url("/b"): b"two"}
        assert sorted(host.asked) == ["/a", "/b"]
        assert f"Host: {host.name}\r\n" in host.heads[0]


async def test_bodies_in_chunks_and_without_a_length_are_read_whole():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n2\r\n__\r\n0\r\n\r\n"
    closed = b"HTTP/1.0 200 OK\r\n\r\nuntil the end"
    async with image_host(chunked=chunked, closed=closed) as host:
        found = await fetch(fetcher(host.name), host.url("/chunked"), host.url("/closed"))
        assert list(found.values()) == [b"one__", b"until the end"]


@pytest.mark.parametrize(
    "url",
    [
        "http://other.test/a",
        "http://images.test:81/a",
        "http://images.test.evil.test/a",
        "http://evil.test/?images.test",
        "http://images.test@evil.test/a",
        "http://user:word@images.test/a",
        "http://evil.test\\@images.test/a",
        "http://evil.test#@images.test/a",
        "http://images.test\t.evil.test/a",
        "http://127.0.0.1/a",
        "http://[::1]/a",
        "http://2130706433/a",
        "http://0x7f.1/a",
        "http://images.test:99999/a",
        "http:///a",
        "ftp://images.test/a",
        "http://images.test/" + "a" * 9000,
        "http://ımages.test/a",
    ],
)
async def test_other_hosts_are_not_asked(url):
    resolver = FakeResolver({})
    with pytest.raises(InvalidParameter):
        await fetch(fetcher("images.test", resolver=resolver), url)
    assert resolver.asked == []


@pytest.mark.parametrize(
    "addresses", [LOCAL, ["169.254.169.254"], ["10.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], [*PUBLIC, "192.168.0.1"]]
)
async def test_an_allowed_name_that_leads_to_a_private_network_is_refused(addresses):
    async with image_host(a=answer(b"secret")) as host:
        resolver = FakeResolver({"images.test": [addresses]})
        with pytest.raises(BadImage, match="private network") as error:
            await fetch(fetcher(host.name, private=False, resolver=resolver), host.url("/a"))
        assert not any(address in str(error.value) for address in addresses)
        assert host.asked == []


async def test_the_connection_goes_to_the_address_that_was_checked():
    """A name whose second look-up gives loopback (DNS rebinding) is looked up once."""
    async with image_host(a=answer(b"secret")) as host:
        resolver = FakeResolver({"images.test": [["127.0.0.1"], ["127.0.0.2"]]})
        assert await fetch(fetcher(host.name, resolver=resolver), host.url("/a")) == {host.url("/a"): b"secret"}
        assert resolver.asked == ["images.test"]
        rebinding = FakeResolver({"images.test": [["127.0.0.9"], ["127.0.0.1"]]})  # where nothing listens
        with pytest.raises(BadImage, match="there is no connection"):
            await fetch(fetcher(host.name, resolver=rebinding), host.url("/a"))
        assert (rebinding.asked, host.asked) == (["images.test"], ["/a"])


async def test_the_next_address_is_tried_where_one_takes_no_connection():
    async with image_host(a=answer(b"one")) as host:
        resolver = FakeResolver({"images.test": [["127.0.0.9", "127.0.0.1"]]})
        assert list((await fetch(fetcher(host.name, resolver=resolver), host.url("/a"))).values()) == [b"one"]


async def test_redirects_are_followed_within_allowed_hosts_and_a_few_times():
    async with image_host(b=answer(b"one")) as host:
        host.answers["/a"] = answer(status="302 Found", Location="/b")
        host.answers["/far"] = answer(status="301 Moved", Location=host.url("/b", "other.test"))
        host.answers["/loop"] = answer(status="307 Again", Location="/loop")
        host.answers["/local"] = answer(status="302 Found", Location=f"http://127.0.0.1:{host.port}/b")
        host.answers["/file"] = answer(status="302 Found", Location="file:///etc/passwd")
        used = fetcher(host.name)
        assert list((await fetch(used, host.url("/a"))).values()) == [b"one"]
        for path in ("/far", "/local", "/file"):
            with pytest.raises(InvalidParameter):
                await fetch(used, host.url(path))
        with pytest.raises(BadImage, match="more than 3 redirects"):
            await fetch(used, host.url("/loop"))
        assert host.asked.count("/loop") == 4
        assert host.asked.count("/b") == 1


async def test_a_redirect_to_an_allowed_name_in_a_private_network_is_refused():
    async with image_host(b=answer(b"secret")) as host:
        resolver = FakeResolver({"inner.test": [LOCAL]})
        used = fetcher(f"inner.test:{host.port}", private=False, resolver=resolver)
        with pytest.raises(BadImage, match="private network"):
            await fetch(used, host.url("/b", "inner.test"))
        assert host.asked == []


ANSWERS = {
    "named": (answer(bytes(1001)), "1001 bytes, the limit is 1000"),
    "unnamed": (b"HTTP/1.0 200 OK\r\n\r\n" + bytes(2000), "more than 1000 bytes"),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" + bytes(2048) + b"\r\n0\r\n\r\n",
        "more than",
    ),
    "missing": (answer(status="404 Not Found"), "status 404"),
    "cut": (answer(b"one", Content_Length="10"), "closed before|no HTTP"),
    "nonsense": (b"\x89PNG\r\n\r\n", "no HTTP/1.1"),
    "heads": (b"HTTP/1.1 200 OK\r\n" + b"A: " + b"a" * 200_000, "no HTTP/1.1"),
    "redirect": (answer(status="302 Found"), "status 302"),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_beyond_the_bounds_is_refused(kind):
    content, message = ANSWERS[kind]
    async with image_host(a=content) as host:
        with pytest.raises(BadImage, match=message):
            await fetch(fetcher(host.name), host.url("/a"))


async def test_a_query_is_sent_and_not_shown():
    async with image_host() as host:
        host.answers["/a?b=%C3%A4&c=d%20e"] = answer(b"one")
        url = host.url("/a?b=ä&c=d%20e")
        assert list((await fetch(fetcher(host.name), url)).values()) == [b"one"]
        with pytest.raises(BadImage) as error:
            await fetch(fetcher(host.name), host.url("/b?signature=secret"))
        assert "secret" not in str(error.value)


async def test_a_host_that_does_not_answer_ends_at_the_limit_of_time():
    async with image_host(a=None, b=answer(b"one")) as host:
        used = MediaFetcher(
            MediaSettings(allowed_domains=(host.name,), allows_private_networks=True),
            FakeResolver({"images.test": [LOCAL]}),
            timeout_s=0.5,
        )
        started = time.monotonic()
        with pytest.raises(BadImage, match=r"did not come within 0\.5 s"):
            await fetch(used, host.url("/a"), host.url("/b"))
        assert time.monotonic() - started < 30


async def test_fetches_at_the_same_time_are_bounded():
    async with image_host(a=answer(b"one")) as host:
        used = fetcher(host.name)
        await asyncio.gather(*(fetch(used, host.url("/a")) for _ in range(3 * MAX_FETCHES)))
        assert 1 < host.most_at_once <= MAX_FETCHES


@pytest.mark.parametrize("name", ["http://images.test", "*", "images.test/", "*.test", "", "a b", "images.test:x"])
def test_names_that_no_host_has_are_refused(name):
    with pytest.raises(ConfigError, match="allowed_media_domains"):
        MediaSettings(allowed_domains=(name,))


def test_without_allowed_hosts_there_is_no_fetcher():
    assert MediaFetcher.of(MediaSettings()) is None


async def test_names_are_compared_without_case_and_final_dot():
    resolver = FakeResolver({})
    used = fetcher("Images.Test", resolver=resolver)
    for url in ("HTTP://images.TEST./a", "https://images.test:443/a"):
        with pytest.raises(BadImage, match="not known"):
            await fetch(used, url)
    with pytest.raises(InvalidParameter, match="allowed_media_domains"):
        await fetch(used, "http://images.test:443/a")
    assert resolver.asked == ["images.test", "images.test"]
