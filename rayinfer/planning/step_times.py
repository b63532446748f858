"""Times of steps: bytes and operations at the device's rates, times the shares of them that were measured."""

from dataclasses import dataclass

from rayinfer.planning.hardware import Hardware
from rayinfer.planning.model_footprint import ModelFootprint


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """Measured shares of a device's limits, and the time that a step takes beside them."""

    weights: float  # of the bandwidth, where one request's step reads the weights
    cache: float  # of the bandwidth, where steps of many requests read keys and values
    prefill: float  # of the rate of products
    batch: float  # of the rate of products, in steps of many requests
    step_s: float
    source: str
    reads_while_computing: bool = True  # weights, in steps of many requests


# B3 and B4 (one stream, two models) give `weights` and `step_s`; B7 `prefill`; B1 `cache`.
GPU = Efficiency(
    weights=0.985,
    cache=0.788,
    prefill=0.771,
    batch=0.771,
    step_s=371e-6,
    source="measured on an H100: kernels/benchmarks/results/gpu-h100.md",
)
# SmolLM2-135M in bfloat16, 256 tokens of context, on two cores without AVX-512: plan-cpu.json beside the results above.
# Steps of 1, 8 and 32 requests took 22.3, 64.0 and 203.7 ms: a line, so reading and computing add up.
CPU = Efficiency(
    weights=0.49,
    cache=0.5,
    prefill=0.756,
    batch=0.238,
    step_s=500e-6,
    reads_while_computing=False,
    source="measured in bfloat16 on two cores with AVX2: kernels/benchmarks/results/plan-cpu.json",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Times of one engine's steps for requests of equal length."""

    model: ModelFootprint
    hardware: Hardware
    efficiency: Efficiency
    has_eight_bit_products: bool = False

    @property
    def _products(self) -> float:
        hardware = self.hardware
        return hardware.eight_bit_operations_per_s if self.has_eight_bit_products else hardware.operations_per_s

    def prefill_s(self, prompt_len: int) -> float:
        """Return the time to compute a prompt and its first token, alone."""
        layers = self.model.operations_per_token * prompt_len / self._products
        rest = (
            self.model.attention_operations(prompt_len) + self.model.head_operations
        ) / self.hardware.operations_per_s
        computing = (layers + rest) / self.efficiency.prefill
        return max(computing, self._reading_weights_s()) + self.efficiency.step_s

    def decode_step_s(self, num_requests: float, context: float) -> float:
        """Return the time of a step that gives each of some requests a token."""
        layers = self.model.operations_per_token / self._products
        head = self.model.head_operations / self.hardware.operations_per_s
        computing = num_requests * (layers + head) / self.efficiency.batch
        cache = num_requests * context * self.model.kv_bytes_per_token / self.hardware.read_bytes_per_s
        reading = self._reading_weights_s()
        products = max(reading, computing) if self.efficiency.reads_while_computing else reading + computing
        return products + cache / self.efficiency.cache + self.efficiency.step_s

    def _reading_weights_s(self) -> float:
        return self.model.active_weight_bytes / self.hardware.read_bytes_per_s / self.efficiency.weights
