"""Protocols between servers, routers and engines, and the request that is passed down."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rayinfer.errors import Unavailable
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.outputs import EngineStats, RequestOutput, StepMessage
from rayinfer.predictions import ImageInput, PredictionInput, PredictorDescription
from rayinfer.predictions import TensorSpec as TensorSpec
from rayinfer.sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy as np  # of the processes that import this, few have tensors


class EngineRequestId(NamedTuple):
    """Identity of an engine request, which is one choice of a client's request.

    Written as `request/choice`, and from the second attempt on as `request/choice@attempt`.
    """

    request_id: str
    choice: int
    attempt: int = 0  # its number

    def __str__(self) -> str:
        name = f"{self.request_id}/{self.choice}"
        return f"{name}@{self.attempt}" if self.attempt else name

    @staticmethod
    def request_id_of(name: str) -> str:
        """Read only the client request's id of the written form."""
        return name.rpartition("/")[0]

    @classmethod
    def parse(cls, name: str) -> "EngineRequestId":
        """Read the written form."""
        request_id, _, part = name.rpartition("/")
        choice, _, attempt = part.partition("@")
        return cls(request_id, int(choice), int(attempt or 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class KVAddress:
    """Address at which an engine's process serves the KV blocks of its machine to engines on others."""

    store_id: str  # the same for engines that share a store
    host: str
    port: int
    key: bytes = field(repr=False)
    certificate: str = field(default="", repr=False)  # the server's own, where it has one: it speaks TLS then

    def source(self, *, num_blocks: int, timeout_s: float, wait_s: float = 0.0) -> "KVSource":
        """Name this server as the source of a request's first blocks."""
        return KVSource(
            num_blocks=num_blocks,
            timeout_s=timeout_s,
            wait_s=wait_s,
            host=self.host,
            port=self.port,
            key=self.key,
            certificate=self.certificate,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class KVSource:
    """Source of the blocks of a request's prefix, now or soon: its engine may fetch them before it computes.

    Without a host they come to the store of the engine's own machine, by another of its engines.
    """

    num_blocks: int  # of the request's first ones
    timeout_s: float  # for the fetch; the engine has a bound of its own
    wait_s: float = 0.0  # for blocks that are not there yet
    host: str = ""
    port: int = 0
    key: bytes = field(default=b"", repr=False)
    certificate: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One prompt to be continued, or one item of which a predictor computes its numbers.

    The router or `LLM` splits a client's request for n choices into n engine requests, each with `n=1` and an
    EngineRequestId.
    """

    request_id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int] = field(default_factory=list)  # not empty when a stream has migrated
    sampling_params: SamplingParams
    choice: int = 0
    priority: int = 0  # lower goes first, -10 to 10
    timeout_s: float | None = None  # remaining seconds
    tenant: str = ""
    cache_salt: str = ""  # requests with different salts share no cached prefix
    adapter: str | None = None  # the id of its LoRA adapter, with its digest
    adapter_folder: str = ""  # where an engine finds that
    attempt: int = 0  # number of the dispatch to an engine
    trace: bool = False  # whether its events are recorded
    prediction: PredictionInput | None = None  # for a predictor; then nothing is generated
    kv_source: KVSource | None = None  # set by the router
    images: tuple[ImageInput, ...] = ()  # of the prompt, in the order of their tokens

    @property
    def num_input_tokens(self) -> int:
        """Tokens of its prompt, or those that its input counts as."""
        num_prompt_tokens = len(self.prompt_token_ids)
        return num_prompt_tokens if self.prediction is None else self.prediction.num_tokens(num_prompt_tokens)

    @property
    def image_digests(self) -> tuple[bytes, ...]:
        """Digests of the prompt's images, by which prefixes of equal tokens differ."""
        return tuple(image.digest for image in self.images)


@dataclass(frozen=True, slots=True)
class SharedStore:
    """The KV block store of a machine, as routers know it."""

    name: str  # the same for all engines that share it, and for no others
    num_blocks: int  # that it can hold


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """Public description of a served model."""

    name: str
    max_model_len: int  # tokens of prompt and answer together, as far as the KV pool and the model allow
    vocab_size: int
    created: int  # seconds since 1970
    kv_blocks_total: int = 0
    kv_window_pages_total: int = 0  # blocks that sliding-window layers can keep at once; 0: all of them
    block_size: int = 16
    max_num_seqs: int = 0  # requests that run at the same time; 0: unknown
    max_num_batched_tokens: int = 0  # of one step; 0: unknown
    max_cudagraph_capture_size: int = 0  # requests in the largest step that runs as a CUDA graph; 0: none does
    async_scheduling: bool = False  # whether a step is planned while the one before computes
    sizes_from: str = ""  # which sizes were given, and where the others come from, for operators; empty: unknown
    eos_token_ids: tuple[int, ...] = ()
    weights_version: int = 0  # weight version
    supports_structured_outputs: bool = False  # whether answers can be held to a grammar
    scores_prompts: bool = True  # False for encoder-decoders: prompts have no logprobs
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)  # by field of SamplingParams
    bad_token_sequences: tuple[tuple[int, ...], ...] = ()  # never generated, such as padding
    predictor: PredictorDescription | None = None  # of a model that does not generate
    kernels: str = ""  # what computes: a CPU kernel path, triton or torch; empty: unknown
    device: str = ""  # CPU threads or GPUs of the engine, for operators; empty: unknown
    kv_store: SharedStore | None = None  # where the engine finds blocks of others
    takes_images: bool = False  # whether prompts may have images
    speculation: str = ""  # drafts of next tokens, or why there are none; empty: off

    def longest_prompt(self, *, generates: bool = True) -> int:
        """Return the maximum prompt length: `max_model_len`, less one where the answer follows in the same context."""
        return self.max_model_len - (1 if generates and self.scores_prompts else 0)

    @property
    def cache_config(self) -> dict[str, str]:
        """Labels of vLLM's `cache_config_info`, under its names."""
        return {"block_size": str(self.block_size), "num_gpu_blocks": str(self.kv_blocks_total)}

    @property
    def capacity(self) -> str:
        """Sizes that the engine was built with, in one line, and why these."""
        because = f"; {self.sizes_from}" if self.sizes_from else ""
        if self.predictor is not None:
            tasks, size = ", ".join(self.predictor.tasks), self.predictor.image_size
            inputs = f"images of {size} x {size} pixels" if size else f"max_model_len {self.max_model_len:,}"
            steps = f"steps of up to {self.max_num_batched_tokens:,} tokens and {self.max_num_seqs:,} items"
            return f"{tasks}, {inputs}, {steps}{because}"
        num_tokens = self.kv_blocks_total * self.block_size
        largest_graph = self.max_cudagraph_capture_size
        parts = [
            f"max_num_seqs {self.max_num_seqs:,}",
            f"max_num_batched_tokens {self.max_num_batched_tokens:,}",
            f"max_model_len {self.max_model_len:,}",
            f"{self.kv_blocks_total:,} KV blocks of {self.block_size} tokens ({num_tokens:,} in all)",
            *([f"{self.kv_window_pages_total:,} pages for sliding windows"] if self.kv_window_pages_total else []),
            "async scheduling" if self.async_scheduling else "no async scheduling",
            f"CUDA graphs for up to {largest_graph} requests" if largest_graph else "no CUDA graphs",
            *([f"{self.kernels} kernels"] if self.kernels else []),
            *([self.device] if self.device else []),
            *([self.speculation] if self.speculation else []),
        ]
        return ", ".join(parts) + because


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceStatus:
    """Readiness of a model, and the reason if it is not ready."""

    ready: bool
    reason: str = ""
    num_waiting: int = 0
    engines: dict[str, EngineStats] = field(default_factory=dict)  # by engine name
    descriptions: dict[str, ModelDescription] = field(default_factory=dict)  # by engine name


class TextGenerator(Protocol):
    """A generator of text for GenerationRequests."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Yield deltas until one has `finished`; closing the iterator aborts the request.

        Rejections (RequestError, Unavailable) are raised at once or by the first `__anext__`, before any output.
        """
        ...

    async def compile_grammar(self, spec: StructuredOutputsParams) -> bool:
        """Have an engine compile what answers are to be held to; raises InvalidParameter for what it refuses.

        False where no engine can be asked now.
        """
        ...

    def describe(self) -> ModelDescription:
        """Describe the model; raises NotReady while no engine has reported."""
        ...

    def status(self) -> ServiceStatus:
        """Return its readiness and load."""
        ...

    def overload(self) -> Unavailable | None:
        """Return why every request would be rejected now; None while any is admitted."""
        ...


@dataclass(frozen=True, slots=True)
class Pause:
    """Plan no further step; requests stay, and more are accepted. Refused while asleep."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume after `Pause`. Refused while asleep."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Pause and free memory, as `SleepLevel` has it; refused while asleep at another level."""

    level: int = 1


@dataclass(frozen=True, slots=True)
class Wake:
    """Allocate the memory again and continue as before `Sleep`."""


@dataclass(frozen=True, slots=True)
class GetState:
    """Report the state and change nothing."""


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Read a LoRA adapter from a folder that PEFT saved; returns its digest in place of a state."""

    folder: str


ControlAction = Pause | Resume | Sleep | Wake | GetState | LoadAdapter


class EngineControl(Protocol):
    """Control of one engine, or of all engines of a model, with requests in flight."""

    async def control(self, action: ControlAction) -> list[str]:
        """Run an action; returns each engine's state after it: running, paused or asleep.

        Raises WrongEngineState where the action is refused in an engine's state, EngineDead when an engine is gone.
        """
        ...


class EngineClient(EngineControl, Protocol):
    """A router's client of one engine, in this process or in another."""

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        """Submit requests; a rejected one ends with a delta of finish reason "error"."""
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        ...

    async def compile_grammar(self, spec: StructuredOutputsParams, router_id: str) -> None:
        """Compile a grammar for requests to come; raises InvalidParameter for one that is refused, EngineDead."""
        ...

    def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        """Yield this router's messages, one per engine step at most; closing it aborts this router's requests."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named array.

    BF16 has the bits of its values in an array of uint16, BYTES bytes objects in an array of objects.
    """

    name: str
    datatype: str
    data: "np.ndarray[Any, Any]"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorRequest:
    """Settings of one inference of a TensorModel."""

    request_id: str
    priority: int = 0  # lower goes first, -10 to 10
    timeout_s: float | None = None  # remaining seconds; the caller stops waiting then
    tenant: str = ""
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)  # the model's own


class TensorModel(Protocol):
    """A model of tensors rather than of text."""

    @property
    def name(self) -> str:
        """Name of the model."""
        ...

    @property
    def platform(self) -> str:
        """Kind of the model, for its metadata."""
        ...

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """Inputs, all of them required."""
        ...

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """Outputs, in the order in which they are returned."""
        ...

    @property
    def max_batch_size(self) -> int:
        """Largest first dimension of its tensors; 0 where that is not a batch."""
        ...

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Names of an output's classes, by output."""
        ...

    async def infer(self, inputs: Mapping[str, Tensor], request: TensorRequest) -> Sequence[Tensor]:
        """Compute all outputs of checked inputs; raises RequestError and Unavailable. Cancelling it ends the work."""
        ...
