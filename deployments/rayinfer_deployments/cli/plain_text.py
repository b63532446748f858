"""Text of others for a terminal: what would move the cursor, set colors or turn the direction is written out."""

import unicodedata

KEPT = "\n\t"
# Format characters: directions (U+202A to U+202E, U+2066 to U+2069, marks), joiners and the like.
_WRITTEN_OUT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def plain_text(text: str, limit: int | None = None, kept: str = KEPT) -> str:
    """Write control and format characters as their codes, and cut off what is beyond `limit` characters."""
    cut = text if limit is None or len(text) <= limit else f"{text[: limit - 1]}…"
    if cut.isascii() and cut.isprintable():
        return cut
    return "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char) in _WRITTEN_OUT and char not in kept else char
        for char in cut
    )
