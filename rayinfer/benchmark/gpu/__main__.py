"""`python -m rayinfer.benchmark.gpu`: for machines with a GPU and little else."""

import argparse
import sys
from functools import partial
from pathlib import Path

from rayinfer.benchmark.gpu.suite import run_gpu_benchmark
from rayinfer.errors import RayinferError


def main() -> int:
    """Read the arguments and run; 1 when it could not begin, or a check failed."""
    parser = argparse.ArgumentParser(prog="python -m rayinfer.benchmark.gpu", description="The engine on this GPU")
    parser.add_argument(
        "--output", type=Path, default=Path("kernels/benchmarks/results"), help="folder for gpu.json, .md and .svg"
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases and shapes, each once, in two minutes")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes, on any machine: figures mean nothing")
    parser.add_argument("--only", default="", help="some workloads, B1,B3 for example")
    parser.add_argument("--minutes", type=float, help="no case begins later (8, or 2 with --quick)")
    chosen = parser.parse_args()
    try:
        report = run_gpu_benchmark(
            chosen.output,
            partial(print, flush=True),
            is_quick=chosen.quick,
            is_dry_run=chosen.dry_run,
            only=[name.strip() for name in chosen.only.split(",") if name.strip()],
            limit_s=None if chosen.minutes is None else 60 * chosen.minutes,
            command=" ".join(["python -m rayinfer.benchmark.gpu", *sys.argv[1:]]),
        )
    except RayinferError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0 if all(check.is_right for check in report.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
