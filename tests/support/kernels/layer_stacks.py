"""Random decoders of a few layers: as one operation, and as the plainest torch."""

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from rayinfer_kernels import reference
from rayinfer_kernels.cpu.kernels import CpuKernels
from rayinfer_kernels.gpu.layer_stack import GpuLayerStack
from rayinfer_kernels.gpu.paged_cache import allocate_paged_cache
from rayinfer_kernels.kv_cache import KVCache, allocate_kv_cache
from rayinfer_kernels.layer_stack import LayerStack, LayerWeights, OutputTokens, PackedLinear, StackShape
from rayinfer_kernels.low_rank import LowRankTable, TokenSlots
from rayinfer_kernels.packed_weight import PackedWeight, WeightFormat, pack
from rayinfer_kernels.quantized_weight import QuantizedWeight, pack_quantized, quantize

BLOCK_SIZE, MAX_BLOCKS, NUM_REQUESTS = 16, 40, 3
CPU = torch.device("cpu")
Operand = torch.Tensor | PackedWeight
Changes = list[torch.Tensor]  # what each slot's terms add to a matrix


@dataclass(frozen=True, kw_only=True)
class StackCase:
    """Sizes of a decoder."""

    hidden: int = 48
    intermediate: int = 80
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    rotary_dim: int = 16
    windows: tuple[int | None, ...] = (None, None)
    unrotated: tuple[int, ...] = ()  # layers without rotary positions
    has_biases: bool = False
    has_head_norms: bool = False
    activation: str = "silu"
    eps: float = 1e-5

    @property
    def widths(self) -> tuple[int, int]:
        return self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class Step:
    """Tokens first to last of some requests, each of which has blocks of its own."""

    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    num_decodes: int = 0
    adapters: TokenSlots | None = None
    outputs: OutputTokens | None = None

    def on(self, device: torch.device) -> "Step":
        """The same on another device."""
        tensors = {name: each.to(device) for name, each in vars(self).items() if isinstance(each, torch.Tensor)}
        outputs = None
        if self.outputs is not None:
            outputs = OutputTokens(self.outputs.lines.to(device), self.outputs.cu_seqlens.to(device))
        return replace(self, **tensors, outputs=outputs)

    def returning(self, counts: Sequence[int]) -> "Step":
        """The same that returns so many of each request's last tokens."""
        ends = self.cu_seqlens_q[1:].tolist()
        lines = [line for end, count in zip(ends, counts, strict=True) for line in range(end - count, end)]
        cu_seqlens = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
        return replace(self, outputs=OutputTokens(torch.tensor(lines, dtype=torch.int64), cu_seqlens))


def make_step(spans: Sequence[tuple[int, int, int]]) -> Step:
    """Requests and the tokens [begin, end) that they compute."""
    tables = torch.arange(NUM_REQUESTS * MAX_BLOCKS).view(NUM_REQUESTS, MAX_BLOCKS).flip(1)
    positions = torch.cat([torch.arange(begin, end) for _, begin, end in spans])
    owners = torch.cat([torch.full((end - begin,), request) for request, begin, end in spans])
    slot_mapping = tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    starts = [0, *itertools.accumulate(end - begin for _, begin, end in spans)]
    return Step(
        positions,
        slot_mapping,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([end for _, _, end in spans], dtype=torch.int32),
        tables[[request for request, _, _ in spans]].to(torch.int32),
        num_decodes=len(list(itertools.takewhile(lambda span: span[2] - span[1] == 1, spans))),
    )


class RandomStack:
    """The weights of a decoder, quantized if they get a format, and both ways to run it, each with its own cache."""

    def __init__(
        self, case: StackCase, dtype: torch.dtype, kv_dtype: torch.dtype, format: WeightFormat | None = None
    ) -> None:
        self.case, self.dtype, self.kv_dtype = case, dtype, kv_dtype
        self.layers = [self._random_layer() for _ in case.windows]
        self.quantized: dict[int, QuantizedWeight] = {}  # by the identity of the matrix that it stands for
        if format is not None:
            matrices = [weights[name] for weights in self.layers for name in ("qkv", "output", "gate_up", "down")]
            self.quantized = {id(matrix): quantize(matrix, format) for matrix in matrices}
        self.last_norm = self._norm(case.hidden)
        positions = torch.arange(float(MAX_BLOCKS * BLOCK_SIZE))
        angles = torch.outer(positions, torch.rand(case.rotary_dim // 2)).repeat(1, 2)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.tables: dict[int, LowRankTable] = {}  # terms of adapters, by the same
        self.plain_caches = self.new_caches(torch.float32 if kv_dtype is not torch.int8 else kv_dtype)

    def give_tables(self, make: Callable[..., tuple[LowRankTable, Changes]]) -> dict[int, Changes]:
        """Give every matrix the terms that `make` returns, given its outputs and inputs, and return its changes."""
        changes = {}
        for weights in self.layers:
            for name in ("qkv", "output", "gate_up", "down"):
                outputs, inputs = weights[name].shape
                halves = 2 if name == "gate_up" else 1
                self.tables[id(weights[name])], changes[id(weights[name])] = make(
                    outputs // halves, inputs, is_gated=halves == 2
                )
        return changes

    def changed(self, changes: dict[int, Changes], slot: int) -> "RandomStack":
        """Return the decoder with the changes of one slot in its weights, which it keeps in float32."""
        other = copy(self)
        other.layers = [
            {
                name: each.float() + changes[id(each)][slot] if id(each) in changes else each
                for name, each in layer.items()
            }
            for layer in self.layers
        ]
        other.plain_caches = self.new_caches(torch.float32)
        return other

    def packed(self, kernels: CpuKernels) -> LayerStack:
        """The decoder as one operation, with an empty cache."""
        layers = [self._layer(number, self._packed) for number in range(len(self.layers))]
        stack = kernels.layer_stack(layers, self.last_norm, self.shape)
        assert stack is not None
        stack.bind(self.new_caches(self.kv_dtype), self.cos, self.sin)
        return stack

    def on_gpu(self, device: torch.device, linear: Callable[[torch.Tensor, bool], Operand]) -> LayerStack:
        """The same for a GPU, with weights that `linear` makes of plain ones, given whether they are gated."""

        def made(weights: dict[str, torch.Tensor], name: str) -> PackedLinear:
            bias = weights.get(f"{name}_bias")
            return PackedLinear(
                linear(weights[name].to(device), name == "gate_up"), None if bias is None else bias.to(device)
            )

        layers = [self._layer(number, made, device) for number in range(len(self.layers))]
        stack = GpuLayerStack(layers, self.last_norm.to(device), self.shape)
        sizes = (NUM_REQUESTS * MAX_BLOCKS, BLOCK_SIZE, self.case.num_kv_heads, self.case.head_dim)
        caches = [allocate_paged_cache(*sizes, self.kv_dtype, device) for _ in layers]
        stack.bind(caches, self.cos.to(device), self.sin.to(device))
        return stack

    @property
    def shape(self) -> StackShape:
        case = self.case
        return StackShape(
            hidden_size=case.hidden,
            num_heads=case.num_heads,
            num_kv_heads=case.num_kv_heads,
            head_dim=case.head_dim,
            eps=case.eps,
            scale=case.head_dim**-0.5,
            activation=case.activation,
        )

    def expected(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Return what the layers make of x, in float32."""
        sums = x.float()
        for number, weights in enumerate(self.layers):
            sums = sums + self._attend(number, weights, sums, step)
            normed = reference.rms_norm(sums, weights["feed_forward_norm"].float(), self.case.eps)
            stacked = self._multiply(weights, "gate_up", normed)
            gate = reference.silu_and_mul if self.case.activation == "silu" else reference.gelu_tanh_and_mul
            sums = sums + self._multiply(weights, "down", gate(stacked))
        return reference.rms_norm(sums, self.last_norm.float(), self.case.eps)

    def _attend(self, number: int, weights: dict[str, torch.Tensor], sums: torch.Tensor, step: Step) -> torch.Tensor:
        case, cache = self.case, self.plain_caches[number]
        query_width, kv_width = case.widths
        normed = reference.rms_norm(sums, weights["attention_norm"].float(), case.eps)
        parts = self._multiply(weights, "qkv", normed).split([query_width, kv_width, kv_width], -1)
        query, key, value = (part.reshape(len(sums), -1, case.head_dim) for part in parts)
        if case.has_head_norms:
            query = reference.rms_norm(query, weights["query_norm"].float(), case.eps)
            key = reference.rms_norm(key, weights["key_norm"].float(), case.eps)
        if number not in case.unrotated:
            query, key = self._turned(query, step), self._turned(key, step)
        reference.write_kv(key, value, cache, step.slot_mapping)
        attended = reference.paged_attention(
            *(query, cache, step.block_tables, step.cu_seqlens_q, step.seq_lens),
            *(case.head_dim**-0.5, case.windows[number]),
        )
        return self._multiply(weights, "output", attended.flatten(1))

    def _turned(self, heads: torch.Tensor, step: Step) -> torch.Tensor:
        dim, cos, sin = self.case.rotary_dim, self.cos[step.positions].float(), self.sin[step.positions].float()
        return torch.cat((reference.rotary_embedding(heads[..., :dim], cos, sin), heads[..., dim:]), -1)

    def _multiply(self, weights: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
        bias, quantized = weights.get(f"{name}_bias"), self.quantized.get(id(weights[name]))
        if quantized is not None:
            return reference.packed_linear(x, pack_quantized(quantized), bias)
        return F.linear(x, weights[name].float(), None if bias is None else bias.float())

    def _random_layer(self) -> dict[str, torch.Tensor]:
        case, (query_width, kv_width) = self.case, self.case.widths
        shapes = {
            "qkv": (query_width + 2 * kv_width, case.hidden),
            "output": (case.hidden, query_width),
            "gate_up": (2 * case.intermediate, case.hidden),
            "down": (case.hidden, case.intermediate),
        }
        weights = {name: (torch.randn(shape) * shape[1] ** -0.5).to(self.dtype) for name, shape in shapes.items()}
        if case.has_biases:
            weights |= {f"{name}_bias": torch.randn(shape[0]).to(self.dtype) for name, shape in shapes.items()}
        weights |= {name: self._norm(case.hidden) for name in ("attention_norm", "feed_forward_norm")}
        return weights | {name: self._norm(case.head_dim) for name in ("query_norm", "key_norm")}

    def _packed(self, weights: dict[str, torch.Tensor], name: str) -> PackedLinear:
        quantized, is_gated = self.quantized.get(id(weights[name])), name == "gate_up"
        table = self.tables.get(id(weights[name]))
        if quantized is not None:
            return PackedLinear(pack_quantized(quantized, is_gated=is_gated), weights.get(f"{name}_bias"), table)
        return PackedLinear(pack(weights[name].clone(), is_gated=is_gated), weights.get(f"{name}_bias"), table)

    def _layer(
        self, number: int, linear: Callable[[dict[str, torch.Tensor], str], PackedLinear], device: torch.device = CPU
    ) -> LayerWeights:
        weights, has_norms = self.layers[number], self.case.has_head_norms
        norms = ("attention_norm", "feed_forward_norm", "query_norm", "key_norm")
        norm = {name: weights[name].to(device) for name in norms}
        return LayerWeights(
            attention_norm=norm["attention_norm"],
            qkv=linear(weights, "qkv"),
            query_norm=norm["query_norm"] if has_norms else None,
            key_norm=norm["key_norm"] if has_norms else None,
            output=linear(weights, "output"),
            feed_forward_norm=norm["feed_forward_norm"],
            gate_up=linear(weights, "gate_up"),
            down=linear(weights, "down"),
            window=self.case.windows[number],
            is_rotated=number not in self.case.unrotated,
        )

    def _norm(self, width: int) -> torch.Tensor:
        return (1 + 0.1 * torch.randn(width)).to(self.dtype)

    def new_caches(self, dtype: torch.dtype) -> list[KVCache]:
        sizes = (NUM_REQUESTS * MAX_BLOCKS, BLOCK_SIZE, self.case.num_kv_heads, self.case.head_dim)
        return [allocate_kv_cache(*sizes, dtype, CPU) for _ in self.case.windows]
