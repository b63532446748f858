"""Hosts that a service may fetch images from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rayinfer.errors import ConfigError

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
_DOMAIN = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}(?::\d{{1,5}})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaSettings:
    """Hosts that images may be fetched from: exact names, each with a port where it is not that of its scheme."""

    allowed_domains: tuple[str, ...] = ()  # none: nothing is fetched
    allows_private_networks: bool = False  # for tests and intranets

    def __post_init__(self) -> None:
        for domain in self.allowed_domains:
            check_domain(domain)


NO_MEDIA = MediaSettings()


def media_settings(allowed_domains: Sequence[str], *, allows_private: bool) -> MediaSettings:
    """Return checked settings; raises ConfigError."""
    return MediaSettings(allowed_domains=tuple(allowed_domains), allows_private_networks=allows_private)


def check_domain(domain: str) -> str:
    """Return a name of an allowed host; raises ConfigError for what no URL's host can be, such as a URL or *."""
    if not _DOMAIN.fullmatch(domain.lower()):
        raise ConfigError(f"allowed_media_domains: {domain!r:.100} is no name of a host, with or without its port")
    return domain
