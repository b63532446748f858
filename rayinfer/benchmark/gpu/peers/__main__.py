"""`python -m rayinfer.benchmark.gpu.peers`: the engine beside transformers and a minimal loop, on this GPU."""

import argparse
import sys
from functools import partial
from pathlib import Path

from rayinfer.benchmark.gpu.peers.comparison import compare_peers
from rayinfer.benchmark.gpu.peers.peer_report import PEER_CASES, PEERS
from rayinfer.errors import RayinferError


def main() -> int:
    """Read the arguments and run; 1 when it could not begin, or a system failed."""
    parser = argparse.ArgumentParser(prog="python -m rayinfer.benchmark.gpu.peers", description="Peers on this GPU")
    parser.add_argument(
        "--output", type=Path, default=Path("kernels/benchmarks/results"), help="folder for gpu-peers.json and .md"
    )
    parser.add_argument("--only", default="", help=f"some peers: {','.join(PEERS)}")
    parser.add_argument("--works", default="", help=f"some workloads: {','.join(PEER_CASES)}")
    parser.add_argument("--minutes", type=float, default=9.5, help="for everything; a system is stopped then")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes, on any machine: figures mean nothing")
    chosen = parser.parse_args()
    try:
        report = compare_peers(
            chosen.output,
            partial(print, flush=True),
            only=_names(chosen.only),
            case_names=_names(chosen.works),
            limit_s=60 * chosen.minutes,
            is_dry_run=chosen.dry_run,
            command=" ".join(["python -m rayinfer.benchmark.gpu.peers", *sys.argv[1:]]),
        )
    except RayinferError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 1 if any(row.error for row in report.rows) else 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    sys.exit(main())
