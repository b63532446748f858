"""Validation of JSON texts by their schema, formats included, without further packages."""

import json
import re
import uuid
from datetime import date
from ipaddress import IPv4Address, IPv6Address

from jsonschema import Draft202012Validator, FormatChecker

_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_DURATION = r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
FORMATS = FormatChecker(formats=())


def _check(name, is_valid):
    def check(value):
        return not isinstance(value, str) or is_valid(value)

    FORMATS.checks(name, raises=ValueError)(check)


_check("date", lambda text: re.fullmatch(r"\d{4}-\d\d-\d\d", text) and bool(date.fromisoformat(text)))
_check("time", lambda text: re.fullmatch(_TIME, text))
_check("date-time", lambda text: re.fullmatch(r"\d{4}-\d\d-\d\d[tT]" + _TIME, text) and date.fromisoformat(text[:10]))
_check("duration", lambda text: re.fullmatch(_DURATION, text))
_check("email", lambda text: re.fullmatch(r"\S+@\S+", text))
_check("hostname", lambda text: len(text) <= 253 and re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", text))
_check("uuid", lambda text: len(text) == 36 and bool(uuid.UUID(text)))
_check("ipv4", lambda text: bool(IPv4Address(text)) or True)
_check("ipv6", lambda text: bool(IPv6Address(text)) or True)
_check("uri", lambda text: re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:\S*", text))


def schema_errors(schema, text):
    """Return what is wrong with a text, as far as its schema goes."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return [f"no JSON: {error}"]
    return [error.message for error in Draft202012Validator(schema, format_checker=FORMATS).iter_errors(value)]
