"""Python with only some packages installed: a folder of links to them and to their dependencies."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OWN = [ROOT, ROOT / "kernels", ROOT / "deployments", ROOT / "tests"]


def run_with_packages(
    packages: Iterable[str], folder: Path, code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a process that sees these packages, Python's own and ours; `folder` is for the links."""
    for package in _with_needed(packages):
        for name in {path.parts[0] for path in package.files or () if path.parts[0] != ".."}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(package.locate_file(name))))
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # this run's own
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [*OWN, folder]))
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )


def _with_needed(packages: Iterable[str]) -> Iterable[Distribution]:
    found: dict[str, Distribution] = {}
    waiting = list(packages)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # another system's
            continue
        needed = [line for line in found[name].requires or () if "extra ==" not in line]
        waiting += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed]
    return found.values()
