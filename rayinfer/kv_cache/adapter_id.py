"""Identity of an adapter: its name, and the digest of its files (no torch here)."""

from pathlib import Path

import xxhash

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


def adapter_id(name: str, digest: str) -> str:
    """Join name and content: what requests, salts of prefixes and traces have, so that equal ids are equal weights."""
    return f"{name}@{digest}"


def name_in(adapter_id: str) -> str:
    """Return the name of an id."""
    return adapter_id.rpartition("@")[0]


def digest_in(adapter_id: str) -> str:
    """Return the digest of an id."""
    return adapter_id.rpartition("@")[2]


def content_digest(config: bytes, weights: bytes) -> str:
    """Compute the digest of both files' contents."""
    return str(xxhash.xxh3_128_hexdigest(b"%d:%b%b" % (len(config), config, weights)))


def folder_digest(folder: Path) -> str:
    """Compute the digest of an adapter's folder, which is not checked; raises OSError where a file is missing."""
    return content_digest((folder / CONFIG_FILE).read_bytes(), (folder / WEIGHTS_FILE).read_bytes())
