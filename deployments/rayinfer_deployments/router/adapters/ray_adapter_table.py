"""Table of adapters in Ray's internal key-value store, which outlives routers and engines and ends with the cluster."""

from urllib.parse import quote

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_list, _internal_kv_put

NAMESPACE = b"rayinfer-adapters"


class RayAdapterTable:
    """AdapterTable of one application."""

    def __init__(self, application: str) -> None:
        self._prefix = f"{quote(application, safe='')}/"

    def keys(self) -> list[str]:
        """See AdapterTable."""
        found = _internal_kv_list(self._prefix, namespace=NAMESPACE)
        return [key.decode().removeprefix(self._prefix) for key in found]

    def get(self, key: str) -> bytes | None:
        """See AdapterTable."""
        record: bytes | None = _internal_kv_get(self._prefix + key, namespace=NAMESPACE)
        return record

    def put(self, key: str, record: bytes) -> None:
        """See AdapterTable."""
        _internal_kv_put(self._prefix + key, record, namespace=NAMESPACE)

    def delete(self, key: str) -> None:
        """See AdapterTable."""
        _internal_kv_del(self._prefix + key, namespace=NAMESPACE)

    def clear(self) -> None:
        """Delete all records, before an application of this name starts anew."""
        for key in self.keys():
            self.delete(key)
