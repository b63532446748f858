"""The caller of a request: whose share, prefix cache, key and limits it uses."""

from dataclasses import dataclass

from rayinfer.access.api_key import ApiKey, Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request, as far as the service knows it."""

    tenant: str = ""  # "" for none; tenants share no cached prefix
    cache_salt: str = ""  # of its requests that name none
    key: ApiKey | None = None  # None where the service asks for none
    is_stranger: bool = False  # without a valid key where the service asks for one

    @property
    def key_id(self) -> str:
        """Return the id of the key; "" without one."""
        return "" if self.key is None else self.key.key_id

    def has_scope(self, scope: Scope) -> bool:
        """Return whether the caller may do this; without keys every caller may."""
        return self.key is None or scope in self.key.scopes

    def may_use(self, model: str) -> bool:
        """Return whether the caller may use a model."""
        return self.key is None or self.key.limits.allows_model(model)

    def may_see(self, model: str) -> bool:
        """Return whether an answer to the caller may name a model."""
        return not self.is_stranger and self.may_use(model)


STRANGER = Caller(is_stranger=True)
