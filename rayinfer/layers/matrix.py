"""A weight matrix in the GEMM kernels' packed layout."""

from collections.abc import Callable

import torch

from rayinfer_kernels import ops


class Matrix(torch.nn.Module):
    """weight [..., out_features, in_features]; once it is loaded, `pack` replaces it by its packed form."""

    def __init__(self, *shape: int, is_gated: bool = False) -> None:
        super().__init__()
        self.is_gated = is_gated  # the outputs are a gate's, then as many that it multiplies
        self.weight = torch.nn.Parameter(torch.empty(shape), requires_grad=False)
        self._packed: ops.PackedWeight | None = None
        self._dtype: torch.dtype | None = None  # of the weight before it was packed

    @property
    def packed(self) -> ops.PackedWeight | None:
        """The packed weight, once there is one."""
        return self._packed

    def pack(self) -> None:
        """Pack the weight where that is worth it and free the original; a packed one stays as it is."""
        if self._packed is None and (packed := ops.pack_weight(self.weight, self.is_gated)) is not None:
            self.use_packed(packed)

    def use_packed(self, packed: ops.PackedWeight) -> None:
        """Multiply by this from now on and free the weight; gathered rows keep the weight's dtype."""
        self._packed, self._dtype = packed, self.weight.dtype
        del self.weight

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "Matrix":
        """Move the packed weight, too, which torch knows nothing of."""
        if self._packed is not None:
            self._packed.move(fn)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [num_tokens, in_features] -> x W^T + bias, [num_tokens, out_features]."""
        return ops.linear(x, self.operand, bias)

    def multiply_groups(self, x: torch.Tensor, group_starts: torch.Tensor) -> torch.Tensor:
        """x [num_rows, in_features] -> [num_rows, out_features], each group of rows by its own matrix."""
        return ops.grouped_gemm(x, self.operand, group_starts)

    def gather_rows(self, indices: torch.Tensor) -> torch.Tensor:
        """indices [num_tokens] -> [num_tokens, in_features]."""
        return ops.embedding(indices, self.operand, self._dtype)

    @property
    def operand(self) -> torch.Tensor | ops.PackedWeight:
        """The operand of products."""
        return self.weight if self._packed is None else self._packed


def pack_matrices(model: torch.nn.Module) -> None:
    """Pack every matrix of a loaded model, one after the other, so that no more than one is ever held twice."""
    for module in model.modules():
        if isinstance(module, Matrix):
            module.pack()
