"""Triton's interpreter, mended for NumPy 2.4, and prepared once for all launches."""

from types import SimpleNamespace

import triton.language as tl
from triton.runtime import interpreter


def mend_interpreter() -> None:
    """For all kernels that this process launches from now on.

    The interpreter puts its own functions into the language at each launch, and at each call of a function from a
    kernel, `tl.sum` and `tl.max` too: that took half the time of an attention kernel. Here they stay where they are.
    """
    # The language as kernels see it, and as Triton's own functions do.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    # NumPy takes no array of one number for that number any more: let loops begin and end at computed numbers.
    tl.tensor.__index__ = lambda self: int(self.handle.data.item())
    interpreter._patch_lang = lambda _kernel: interpreter._LangPatchScope()
