"""The choice between a model's versions: a hash, so that equal keys get equal versions in every router."""

import xxhash

HASH_RANGE = 2**64


def is_in_share(model: str, key: str, share: float) -> bool:
    """Return whether a key falls into the share; a larger share keeps the keys of a smaller one."""
    return xxhash.xxh64_intdigest(f"{model}\0{key}".encode(errors="surrogatepass")) < share * HASH_RANGE
