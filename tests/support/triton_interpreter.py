"""Mends the interpreter of Triton 3.6 for NumPy 2.4, which takes no array of one number for that number any more."""

from triton.runtime import interpreter


def let_numbers_end_loops() -> None:
    """Let a kernel's loop begin and end at numbers that it has computed."""
    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_mend
