"""Names that adapters may have, whoever gives them."""

import re

MAX_NAME_CHARS = 128
NAME_PATTERN = rf"[A-Za-z0-9][A-Za-z0-9._:/-]{{0,{MAX_NAME_CHARS - 1}}}"


def is_adapter_name(name: str) -> bool:
    """Return whether an adapter may have a name, which requests, answers, paths and ids of adapters then hold."""
    return re.fullmatch(NAME_PATTERN, name) is not None
