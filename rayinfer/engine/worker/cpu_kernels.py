"""The compiled CPU kernels of this process, from the cache folder."""

import rayinfer_kernels
from rayinfer.config import cache_folder, kernel_path
from rayinfer.errors import ConfigError
from rayinfer.startup_steps import CountedStartupStep


def use_cpu_kernels(kernels: str = "auto") -> None:
    """Load the kernels of a path; compiling them first, if need be, is reported as a start step.

    Raises ConfigError where a path that was chosen cannot run; without a choice torch runs in place of the kernels.
    """
    path = kernel_path(kernels)
    on_progress = CountedStartupStep("compiling kernels")
    try:
        rayinfer_kernels.configure(cache_folder() / "kernels", path, "g++", on_progress, is_required=path != "native")
    except rayinfer_kernels.KernelBuildFailed as error:
        raise ConfigError(f"kernels {path!r} do not run on this machine: {error}") from None
