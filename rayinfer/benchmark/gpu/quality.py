"""`python -m rayinfer.benchmark.gpu.quality`: perplexity with eight bits on this GPU, with few packages installed."""

import argparse
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from rayinfer.benchmark.gpu.timing import describe_card
from rayinfer.benchmark.report import write_json
from rayinfer.benchmark.studies.quality.perplexity import QualityPlan, run_quality
from rayinfer.benchmark.studies.quality.texts import describe_weights, quality_texts
from rayinfer.engine.ranks.rank_coordinates import any_device
from rayinfer.errors import RayinferError

GPU_MODES = ("bfloat16", "fp8", "fp8-kv", "fp8+fp8-kv")


def main() -> int:
    """Read the arguments and measure; 1 when it could not begin, or a mode is above its limit."""
    parser = argparse.ArgumentParser(
        prog="python -m rayinfer.benchmark.gpu.quality", description="Perplexity of eight-bit modes beside float32"
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--modes", default=",".join(GPU_MODES), help="with commas between")
    parser.add_argument("--text", type=Path, help="file to predict; Python's help topics unless given")
    parser.add_argument("--length", type=int, default=512, help="tokens of a piece of text, at most")
    parser.add_argument("--max-tokens", type=int, default=16_384, help="tokens in all, at most")
    parser.add_argument(
        "--output", type=Path, default=Path("kernels/benchmarks/results"), help="folder for the JSON file and the table"
    )
    try:
        return _measure(parser.parse_args())
    except RayinferError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command's own words
        return 1


def _measure(chosen: argparse.Namespace) -> int:
    folder = chosen.model.absolute()
    texts = quality_texts(folder, chosen.text, length=chosen.length, max_tokens=chosen.max_tokens)
    plan = QualityPlan(
        model=str(folder),
        folder=folder,
        weights=describe_weights(str(folder), folder),
        text=texts.name,
        texts=texts.pieces,
        modes=tuple(filter(None, chosen.modes.split(","))),
    )
    log = partial(print, flush=True)
    command = shlex.join(["python", "-m", "rayinfer.benchmark.gpu.quality", *sys.argv[1:]])
    card = describe_card(any_device())
    report = replace(run_quality(plan, {}, command, log), card=card)
    stem = chosen.output / f"quality-{folder.name}-gpu"
    write_json(report, stem.with_suffix(".json"))
    report.write_markdown(stem.with_suffix(".md"))
    log(stem.with_suffix(".md").read_text(encoding="utf-8"))
    return 1 if any(mode.is_above_limit for mode in report.modes) else 0


if __name__ == "__main__":
    sys.exit(main())
