"""Selection of files with GPU tests by their text: imports of the others may need packages that are missing."""

import re
from pathlib import Path

NUM_GPUS = len(list(Path("/dev").glob("nvidia[0-9]*")))
_KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "gpu"  # where there is a GPU, all of these need it
_MARK = re.compile(r"mark\.gpu\b(?:\((\d+)\))?")  # gpu(2) needs two


def may_have_gpu_tests(path: Path, num_gpus: int) -> bool:
    """Return whether a file, or one in a folder, has tests that need no more GPUs than these."""
    return any(
        file.parent == _KERNELS or any(int(number or 1) <= num_gpus for number in _MARK.findall(file.read_text()))
        for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    )
