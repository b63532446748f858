"""Triton's interpreter, mended for NumPy 2.4, and made faster."""

import triton.language as tl
from triton.runtime import interpreter


def mend_interpreter() -> None:
    """For all kernels that are launched from now on."""
    _let_numbers_end_loops()
    _prepare_the_language_once_a_launch()


def _let_numbers_end_loops() -> None:
    """NumPy takes no array of one number for that number any more: let loops begin and end at numbers it computed."""
    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_mend


def _prepare_the_language_once_a_launch() -> None:
    """Not at each call of a function, `tl.sum` and `tl.max` too: that takes half the time of an attention kernel."""
    patch = interpreter._patch_lang

    def patch_for_all(kernel):
        patch(tl.max.fn)  # the language as Triton's own functions see it
        return patch(kernel)

    interpreter._patch_lang = patch_for_all
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **settings: self.rewrite()(*args, **settings)
