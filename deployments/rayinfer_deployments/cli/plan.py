"""`rayinfer plan`: memory, times and number of engines for a model, a device and objectives."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayinfer.config import DEFAULT_MODEL
from rayinfer_deployments.cli.failures import in_one_line

if TYPE_CHECKING:
    from rayinfer.images.headers import ImageSize
    from rayinfer.planning.capacity_plan import CapacityPlan
    from rayinfer.planning.comparison import ComparedTime
    from rayinfer.planning.model_footprint import ModelFootprint

LIMITS = "A card that is not known"
MOST = 1e12  # of any rate or limit
CARD_OPTIONS = ("--tensor-parallel-size", "--memory-gb", "--bandwidth-gb-s", "--tflops")

Model = Annotated[
    str | None,
    typer.Argument(
        help=f"what `rayinfer serve` takes, a config.json, or a known shape (Qwen3-8B); default: {DEFAULT_MODEL}",
        show_default=False,
    ),
]
Images = Annotated[int, typer.Option(min=0, help="images of a prompt, whose tokens come to --input-len")]
Ttft = Annotated[float, typer.Option(min=0.001, max=MOST, help="seconds until the first token, of 95 % of requests")]
MemoryGb = Annotated[float | None, typer.Option(min=0.1, max=MOST, rich_help_panel=LIMITS, help="memory")]
BandwidthGbS = Annotated[float | None, typer.Option(min=0.1, max=MOST, rich_help_panel=LIMITS, help="bytes read")]
Tflops = Annotated[float | None, typer.Option(min=0.001, max=MOST, rich_help_panel=LIMITS, help="bfloat16, dense")]


@in_one_line
def plan(
    model: Model = None,
    gpu: Annotated[
        str, typer.Option(help="name of a card; cpu: this machine's processor, which is measured for a moment")
    ] = "cpu",
    rate: Annotated[float, typer.Option(min=0.001, max=MOST, help="requests a second")] = 1.0,
    ttft: Ttft = 1.0,
    itl: Annotated[float, typer.Option(min=0.0001, max=MOST, help="mean seconds between two tokens")] = 0.05,
    input_len: Annotated[int, typer.Option(min=1, help="tokens of a prompt")] = 512,
    output_len: Annotated[int, typer.Option(min=2, help="tokens of an answer")] = 128,
    images: Images = 0,
    image_size: Annotated[str, typer.Option(help="their pixels, WIDTHxHEIGHT")] = "1024x1024",
    quantization: Annotated[str | None, typer.Option(help="int8, int8-dynamic or int4 on a CPU, fp8 on a GPU")] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, int8 on a CPU, fp8 on a GPU")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto (the checkpoint's), float32, bfloat16 or float16")] = "auto",
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="devices of an engine")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="cpu: threads of an engine")] = None,
    memory_gb: MemoryGb = None,
    bandwidth_gb_s: BandwidthGbS = None,
    tflops: Tflops = None,
    named_model: Annotated[str | None, typer.Option("--model", help="the same as MODEL")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="build an engine here and measure the times beside the estimates")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Estimate an engine's memory and speed, and the number of engines for a load."""
    from rayinfer.errors import ConfigError
    from rayinfer.planning.capacity_plan import Objectives, make_plan
    from rayinfer.planning.hardware import CPU, find_card, measure_cpu
    from rayinfer.planning.model_footprint import footprint_of

    if model is not None and named_model is not None:
        raise ConfigError(f"give one model: MODEL is {model!r}, --model {named_model!r}")
    model = model or named_model or DEFAULT_MODEL
    _check_names(quantization, kv_cache_dtype, dtype)
    cards = (None if tensor_parallel_size == 1 else tensor_parallel_size, memory_gb, bandwidth_gb_s, tflops)
    _check_devices(gpu == CPU, cards, threads)
    size, modes = _size(image_size), {"dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    footprint = footprint_of(model, quantization=quantization, image_size=size, **modes)
    image_tokens = _image_tokens(footprint, images)
    card = None if gpu == CPU else find_card(gpu, memory_gb, bandwidth_gb_s, tflops)
    hardware = measure_cpu(threads) if card is None else card.times(tensor_parallel_size)
    lengths = {"prompt_len": input_len + image_tokens, "output_len": output_len, "num_images": images}
    objectives = Objectives(rate=rate, ttft_s=ttft, itl_s=itl, **lengths)
    made = make_plan(footprint, hardware, objectives, quantization=quantization)
    times = []
    if compare:
        from rayinfer.planning.comparison import compare_with_engine

        settings: dict[str, Any] = {"dtype": dtype, "quantization": quantization, "kv_cache_dtype": kv_cache_dtype}
        settings["allow_inaccurate_quantization"] = True  # times are compared, not answers
        settings |= {"num_threads": threads} if gpu == CPU else {"tensor_parallel_size": tensor_parallel_size}
        times = compare_with_engine(made, model, settings, lambda text: typer.echo(text, err=True))
    if as_json:
        compared = [asdict(each) | {"error": each.error} for each in times]
        typer.echo(json.dumps(made.as_json() | {"compared": compared}, indent=2))
    else:
        _echo_tables(made, times)


def _size(text: str) -> "ImageSize":
    from rayinfer.errors import ConfigError
    from rayinfer.images.headers import ImageSize

    width, times, height = text.lower().partition("x")
    if not (times and width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise ConfigError(f"image_size must be WIDTHxHEIGHT in pixels, such as 1024x768, got {text!r:.40}")
    return ImageSize(int(width), int(height))


def _image_tokens(footprint: "ModelFootprint", images: int) -> int:
    from rayinfer.errors import ConfigError

    if not images:
        return 0
    if footprint.images is None:
        raise ConfigError(f"{footprint.name} reads no images: leave out --images {images}")
    return images * footprint.images.tokens_per_image


def _check_devices(is_cpu: bool, cards: Sequence[float | None], threads: int | None) -> None:
    """Refuse options that would change nothing; `cards` are the values of CARD_OPTIONS."""
    from rayinfer.errors import ConfigError

    unused = zip(CARD_OPTIONS, cards, strict=True) if is_cpu else [("--threads", threads)]
    device = "processor, which is measured" if is_cpu else "card"
    for option, value in unused:
        if value is not None:
            raise ConfigError(f"{option} {value:g} does not apply to a {device}: leave it out, or change --gpu")


def _check_names(quantization: str | None, kv_cache_dtype: str, dtype: str) -> None:
    from rayinfer.errors import ConfigError
    from rayinfer.planning.model_footprint import CACHE_BYTES, FLOAT_BYTES, LAYER_BYTES

    for name, value, known in (
        ("quantization", quantization, (None, *LAYER_BYTES)),
        ("kv_cache_dtype", kv_cache_dtype, ("auto", *CACHE_BYTES)),
        ("dtype", dtype, ("auto", *FLOAT_BYTES)),
    ):
        if value not in known:
            raise ConfigError(f"{name} must be one of {', '.join(filter(None, known))}, got {value!r}")


def _echo_tables(plan: "CapacityPlan", times: "list[ComparedTime]") -> None:
    from rayinfer.planning.comparison import comparison_table

    compared = [comparison_table(times, "An engine in this process")] if times else []
    for table in [*plan.tables(), *compared]:
        typer.echo("\n".join(["", table.title, *table.lines()]))
    if plan.hardware.num_devices > 1:
        typer.echo(f"\nNot counted: communication between the {plan.hardware.num_devices} devices of an engine.")
