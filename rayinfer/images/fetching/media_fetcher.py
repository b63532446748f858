"""Images from URLs of allowed hosts, within bounds of bytes, time, redirects and simultaneous fetches."""

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from urllib.parse import quote, urljoin, urlsplit

from rayinfer.errors import BadImage, InvalidParameter
from rayinfer.images.fetching.addresses import Resolve, SystemResolver, is_public
from rayinfer.images.fetching.http_get import FailedGet, Target, http_get
from rayinfer.images.fetching.media_settings import MediaSettings

FETCH_S = 10.0  # for all images of a request, resolution and redirects included
MAX_REDIRECTS = 3
MAX_FETCHES = 16  # at the same time, over all requests
MAX_URL_CHARS = 8192
MAX_ADDRESSES = 3  # of a host that are tried
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")  # read differently by different parsers of URLs
_HEADERS = {"User-Agent": "rayinfer", "Accept": "image/png, image/jpeg, image/webp"}


class MediaFetcher:
    """Fetches images for requests.

    A host's name must be allowed; its addresses must all be public, and the connection goes to one of those that were
    checked: no second look-up can give another. Each redirect is a new URL, checked in the same way.
    """

    def __init__(self, settings: MediaSettings, resolve: Resolve | None = None, *, timeout_s: float = FETCH_S) -> None:
        self._allowed = frozenset(domain.lower().rstrip(".") for domain in settings.allowed_domains)
        self._allows_private = settings.allows_private_networks
        self._resolve = resolve or SystemResolver()
        self._timeout_s = timeout_s
        self._places = asyncio.Semaphore(MAX_FETCHES)

    @classmethod
    def of(cls, settings: MediaSettings) -> "MediaFetcher | None":
        """Return a fetcher; None where no host is allowed."""
        return cls(settings) if settings.allowed_domains else None

    async def fetch(self, urls: Sequence[str], param: str, *, max_bytes: int) -> Mapping[str, bytes]:
        """Return the contents of URLs, each fetched once; raises InvalidParameter or BadImage, which name `param`."""
        wanted = list(dict.fromkeys(urls))
        for url in wanted:
            self._target(url, param)  # before anything is asked of anyone
        try:
            async with asyncio.timeout(self._timeout_s), asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._fetch(url, param, max_bytes)) for url in wanted]
        except TimeoutError:
            raise BadImage(f"{param}: the images did not come within {self._timeout_s:g} s", param) from None
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return {url: task.result() for url, task in zip(wanted, tasks, strict=True)}

    async def _fetch(self, url: str, param: str, max_bytes: int) -> bytes:
        async with self._places:
            asked = url
            for _ in range(MAX_REDIRECTS + 1):
                target = self._target(asked, param)
                addresses = await self._addresses(target, param)
                try:
                    answer = await http_get(target, addresses, _HEADERS, max_bytes=max_bytes, context=self._tls)
                except FailedGet as error:
                    raise BadImage(f"{param}: {_shown(asked)} could not be fetched: {error}", param) from None
                if answer.status in _REDIRECTS and (location := answer.headers.get("location")):
                    asked = urljoin(asked, location)
                    continue
                if answer.status != HTTPStatus.OK:
                    raise BadImage(f"{param}: {_shown(asked)} answered with status {answer.status}", param)
                return answer.body
            raise BadImage(f"{param}: {_shown(url)} has more than {MAX_REDIRECTS} redirects", param)

    def _target(self, url: str, param: str) -> Target:
        """Read a URL and check its host's name; raises InvalidParameter."""
        if len(url) > MAX_URL_CHARS or _UNSAFE.search(url):
            raise InvalidParameter(
                f"{param}: a URL may have {MAX_URL_CHARS} characters, without spaces and backslashes", param
            )
        try:
            parts = urlsplit(url)
            scheme, host, port = parts.scheme.lower(), (parts.hostname or "").rstrip("."), parts.port
            host = host if host.isascii() else host.encode("idna").decode()
        except ValueError:
            raise InvalidParameter(f"{param}: {_shown(url)} is no valid URL", param) from None
        if scheme not in _PORTS or not host or parts.username is not None or parts.password is not None:
            raise InvalidParameter(f"{param}: a URL must be http or https, with a host and no user", param)
        name = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
        if name not in self._allowed:
            raise InvalidParameter(
                f"{param}: images of {name!r:.200} are not fetched: the service allows those of other hosts only"
                " (allowed_media_domains)",
                param,
                "media_host_not_allowed",
            )
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + (
            f"?{quote(parts.query, safe='/?%:@!$&()*+,;=~-._')}" if parts.query else ""
        )
        return Target(host=host, port=port or _PORTS[scheme], path=path, is_tls=scheme == "https")

    async def _addresses(self, target: Target, param: str) -> Sequence[str]:
        """Resolve a host; raises BadImage where it has no address, or one that is not public."""
        try:
            addresses = await self._resolve(target.host, target.port)
        except OSError:
            addresses = ()
        if not addresses:
            raise BadImage(f"{param}: the host {target.host!r:.200} is not known", param)
        if not self._allows_private and not all(map(is_public, addresses)):
            raise BadImage(
                f"{param}: the host {target.host!r:.200} is in a private network, from which nothing is fetched",
                param,
                "media_host_not_allowed",
            )
        return addresses[:MAX_ADDRESSES]

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _shown(url: str) -> str:
    """Return a URL as messages show it, without its query, which may hold a signature."""
    return repr(url.partition("?")[0][:200])
