"""`python -m rayinfer.benchmark.gpu.soak --minutes 10`: a soak test of the engine on this machine's GPU."""

import argparse
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rayinfer.benchmark.gpu.soak.run import FULL, TINY, run_soak
from rayinfer.benchmark.report import write_json
from rayinfer.errors import RayinferError


def main() -> int:
    """Read the arguments and run; 1 when it could not begin, or something was wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m rayinfer.benchmark.gpu.soak", description="Random load, after which nothing may be left behind"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", default="Qwen3-0.6B", help="whose shape the model has; its weights are random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--interrupt-every-s", type=float, default=15.0, help="time between pauses and sleep")
    parser.add_argument("--output", type=Path, default=Path("soak.json"), help="file for the report")
    parser.add_argument("--enforce-eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--kv-cache-dtype", choices=["fp8"])
    parser.add_argument("--dry-run", action="store_true", help="a tiny model, on any machine")
    chosen = parser.parse_args()
    modes = {"quantization": chosen.quantization, "kv_cache_dtype": chosen.kv_cache_dtype}
    settings: dict[str, Any] = {name: mode for name, mode in modes.items() if mode is not None}
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = run_soak(
                Path(folder),
                partial(print, flush=True),
                model=chosen.model,
                seconds=60 * chosen.minutes,
                scale=TINY if chosen.dry_run else FULL,
                seed=chosen.seed,
                interrupt_every_s=chosen.interrupt_every_s,
                settings={**settings, "enforce_eager": chosen.enforce_eager},
            )
    except RayinferError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command's own words
        return 1
    write_json(report, chosen.output)
    print(asdict(report))  # noqa: T201 - a command's own words
    print("failed" if report.problems else "passed")  # noqa: T201
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
