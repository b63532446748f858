"""Two small tensor models that clients' own examples use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rayinfer.protocols import Tensor, TensorModel, TensorRequest, TensorSpec

PLATFORM = "rayinfer_example"
SIMPLE_COLUMNS = 16
EXAMPLE_NAMES = ("simple", "identity")
MAX_BATCH_SIZE = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class SimpleModel:
    """Sum and difference of two batches of integers."""

    name: str = "simple"
    platform: str = PLATFORM
    inputs: Sequence[TensorSpec] = (
        TensorSpec(name="INPUT0", datatype="INT32", shape=(-1, SIMPLE_COLUMNS)),
        TensorSpec(name="INPUT1", datatype="INT32", shape=(-1, SIMPLE_COLUMNS)),
    )
    outputs: Sequence[TensorSpec] = (
        TensorSpec(name="OUTPUT0", datatype="INT32", shape=(-1, SIMPLE_COLUMNS)),
        TensorSpec(name="OUTPUT1", datatype="INT32", shape=(-1, SIMPLE_COLUMNS)),
    )
    max_batch_size: int = MAX_BATCH_SIZE
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    async def infer(self, inputs: Mapping[str, Tensor], request: TensorRequest) -> Sequence[Tensor]:
        """Add and subtract; overflows wrap around."""
        first, second = inputs["INPUT0"].data, inputs["INPUT1"].data
        return [Tensor("OUTPUT0", "INT32", first + second), Tensor("OUTPUT1", "INT32", first - second)]


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentityModel:
    """A tensor of any datatype and shape, returned as it came."""

    name: str = "identity"
    platform: str = PLATFORM
    inputs: Sequence[TensorSpec] = (TensorSpec(name="IN"),)
    outputs: Sequence[TensorSpec] = (TensorSpec(name="OUT"),)
    max_batch_size: int = 0
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    async def infer(self, inputs: Mapping[str, Tensor], request: TensorRequest) -> Sequence[Tensor]:
        """Return the input."""
        tensor = inputs["IN"]
        return [Tensor("OUT", tensor.datatype, tensor.data)]


def example_models() -> list[TensorModel]:
    """Return the models that `--with-examples` serves."""
    return [SimpleModel(), IdentityModel()]
