"""Every error a caller can cause or must know about; each takes plain arguments and survives a pickle round trip."""

RESTART_S = 10.0  # a service or its replacement hardly answers sooner


class RayinferError(Exception):
    """The base of all errors that rayinfer raises on purpose."""


class ConfigError(RayinferError, ValueError):
    """A setting that cannot work."""


class ModelLoadError(RayinferError):
    """A model that cannot be loaded; the message is one line and names the file or the tensor."""


class LimitExceeded(RayinferError):
    """An optimized model that differs too much from its original: the figure's value, and the limit on it."""

    def __init__(self, message: str, value: float | None = None, limit: float | None = None) -> None:
        super().__init__(message, value, limit)
        self.message, self.value, self.limit = message, value, limit

    def __str__(self) -> str:
        return self.message


class ModelNotFound(ModelLoadError):
    """No such folder, file, hub repository or embedded name."""


class UnsupportedArchitecture(ModelLoadError):
    """The checkpoint's architecture is not one of those in the registry."""


class RequestError(RayinferError, ValueError):
    """A request that cannot be served as it stands; `param` is the field at fault, `code` a name for programs."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param, code)
        self.message = message
        self.param = param
        self.code = code

    def __str__(self) -> str:
        return self.message


class InvalidParameter(RequestError):
    """A parameter of the wrong type or outside its range."""


class AdapterRefused(RequestError):
    """An adapter that cannot be loaded for this model; the message is one line and names the file or the tensor."""


class PromptTooLong(RequestError):
    """The prompt leaves no room for even one new token."""


class BadImage(RequestError):
    """An image that cannot be decoded, or is beyond a limit."""


class UnknownModel(RequestError):
    """A model that this service does not serve."""


class TaskNotServed(RequestError):
    """A task that no served model does."""


class NotSupported(RequestError):
    """A part of a protocol that this service does not have."""


class TraceNotFound(RequestError):
    """A trace of a request that is unknown, or of which nothing is kept."""


class ResourceNotFound(RequestError):
    """A file or batch that is not there, or not the caller's."""


class AuthenticationFailed(RequestError):
    """A request without a key, or with one that is not valid."""


class PermissionDenied(RequestError):
    """A request that its key does not permit."""


class OperationRefused(RequestError):
    """An operator's command that the service cannot run as it stands, or that has failed."""


class UnsupportedContentType(RequestError):
    """A body that does not call itself JSON, or is encoded in a way that is not read."""


class RequestTooLarge(RequestError):
    """A body above the service's limit in bytes."""


class RequestTooSlow(RequestError):
    """A request that did not come within the time that a client has for it."""


class HeadersTooLarge(RequestError):
    """More headers, or longer ones, than the service reads."""


class Unavailable(RayinferError):
    """The service cannot take the request now; it may be sent again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class RateLimited(Unavailable):
    """A limit of the key or of the client's address is used up for now."""


class QuotaExceeded(RateLimited):
    """The key's tokens of this day are used up."""


class QueueFull(Unavailable):
    """Too many requests are waiting already."""


class StartingQueueFull(QueueFull):
    """Too many requests wait already for a model whose first engine is being started."""


class NotReady(Unavailable):
    """No engine is ready yet, or none is left."""


class ModelFilesGone(NotReady):
    """No engine is left, and none can be started: the model's files are no longer there."""


class EngineDead(Unavailable):
    """The engine that ran the request is gone."""


class EngineLeaving(EngineDead):
    """The engine that ran the request is draining, and the request continues on another."""


class ShuttingDown(Unavailable):
    """The service is shutting down: it takes no more requests, and ends those that have not ended in time."""

    def __init__(self, message: str = "The service is shutting down.", retry_after_s: float = RESTART_S) -> None:
        super().__init__(message, retry_after_s)


class WrongEngineState(RayinferError):
    """An operation that an engine's state does not allow; the message names both."""


class RequestFailed(RayinferError):
    """The engine could not finish this one request; others are unharmed."""


class GenerationRefused(RequestError):
    """A request whose answer cannot be completed, for what it asks itself; others are unharmed."""


class PredictionFailed(RequestError):
    """An input that the model cannot compute; others are unharmed."""


class RequestTimedOut(RayinferError):
    """The request's time ran out before its answer was complete."""


def shown(value: object) -> str:
    """Write a wrong value for a message, cut where it is long."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write out the largest ones
        return f"an integer of {value.bit_length()} bits"
    return f"{value!r:.80}"
