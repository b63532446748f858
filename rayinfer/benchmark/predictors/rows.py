"""Rows of the comparison: what each measures, and its goals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rayinfer.benchmark.predictors.row_results import Goal, RowResult

OWN, SENTENCES, ORT, OPENVINO = "rayinfer", "sentence-transformers", "onnxruntime", "openvino"
SORTED, ARRIVAL = "sorted", "in arrival order"
PEERS = (SENTENCES, ORT, OPENVINO)
FAULTS = ("exception", "NaN", "too long", "bomb")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row: its title, its goals, and the figure that is drawn."""

    title: str
    figure: str
    unit: str
    goals: Sequence[Goal]


def _over(figure: str, *peers: str) -> Callable[[RowResult], float | None]:
    """Return our median over the best of some peers'."""

    def value(result: RowResult) -> float | None:
        ours, theirs = result.median(OWN, figure), result.best(figure, *peers)
        return None if ours is None or not theirs else ours / theirs

    return value


def _own(figure: str, system: str = OWN) -> Callable[[RowResult], float | None]:
    return lambda result: result.median(system, figure)


def _added_by_http(result: RowResult) -> float | None:
    served, alone = result.median("HTTP", "p50_ms"), result.median("model alone", "p50_ms")
    return None if served is None or alone is None else served - alone


def _tail(result: RowResult) -> float | None:
    p50, p99 = result.median("HTTP", "p50_ms"), result.median("HTTP", "p99_ms")
    return None if p50 is None or p99 is None else p99 / p50


def _worst_ratio(result: RowResult) -> float | None:
    return result.best("ratio", *(name for name in result.runs if name.endswith("clients")))


def _fewest_right(result: RowResult) -> float | None:
    found = [value for name in FAULTS if (value := result.median(name, "right")) is not None]
    return min(found) if found else None


ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "texts": Row(
            title="real texts in arrival order, float32",
            figure="texts_s",
            unit="texts/s",
            goals=(
                Goal(name="P1", text=f"over {SENTENCES}", value=_over("texts_s", SENTENCES), at_least=1.7),
                Goal(
                    name="P1",
                    text="over the better of ONNX Runtime and OpenVINO, sorted",
                    value=_over("texts_s", f"{ORT} {SORTED}", f"{OPENVINO} {SORTED}"),
                    at_least=1.3,
                ),
                Goal(
                    name="P1",
                    text="over ONNX Runtime in arrival order",
                    value=_over("texts_s", f"{ORT} {ARRIVAL}"),
                    at_least=4.0,
                ),
            ),
        ),
        "int8": Row(
            title="real texts in arrival order, eight bits",
            figure="texts_s",
            unit="texts/s",
            goals=(
                Goal(
                    name="P2",
                    text="over the best int8 peer, sorted (with VNNI)",
                    value=_over("texts_s", f"{ORT} {SORTED}", f"{OPENVINO} {SORTED}"),
                    at_least=1.3,
                ),
            ),
        ),
        "http": Row(
            title="one sentence through HTTP, idle",
            figure="p50_ms",
            unit="ms",
            goals=(
                Goal(name="P3", text="ms above the model alone, p50", value=_added_by_http, at_most=4.0),
                Goal(name="P3", text="p99 over p50", value=_tail, at_most=2.0),
            ),
        ),
        "batcher": Row(
            title="the batcher, with a model of 20 ms and 1 ms for each item",
            figure="p50_ms",
            unit="ms",
            goals=(
                Goal(name="P4", text="p50 over the work-conserving ideal, worst", value=_worst_ratio, at_most=1.1),
                Goal(
                    name="P4", text="p99 at 80 % of capacity, in steps", value=_own("p99_steps", "Poisson"), at_most=3.0
                ),
            ),
        ),
        "bad": Row(
            title="one bad item of 32",
            figure="right",
            unit="right answers",
            goals=(
                Goal(name="P5", text="right answers, in the worst case", value=_fewest_right, at_least=31),
                Goal(name="P5", text="runs of the model, of an exception", value=_own("runs", FAULTS[0]), at_most=11),
            ),
        ),
        "busy": Row(
            title="beside a process that takes one core",
            figure="share",
            unit="of the quiet rate",
            goals=(Goal(name="P7", text="of the quiet rate", value=_own("share"), at_least=0.6),),
        ),
        "identical": Row(
            title="64 identical requests at once",
            figure="computed",
            unit="computations",
            goals=(Goal(name="P9", text="computations", value=_own("computed"), at_most=1.0),),
        ),
        "images": Row(
            title="MobileNetV2, decoding included",
            figure="images_s",
            unit="images/s",
            goals=(
                Goal(
                    name="P12",
                    text="over the better of ONNX Runtime and OpenVINO",
                    value=_over("images_s", ORT, OPENVINO),
                    at_least=1.0,
                ),
            ),
        ),
        "broken": Row(
            title="bombs and broken images",
            figure="images_s",
            unit="images/s",
            goals=(
                Goal(name="P12", text="images that were not refused", value=_own("not_refused"), at_most=0),
                Goal(name="P12", text="good images beside them that were lost", value=_own("lost"), at_most=0),
                Goal(name="P12", text="growth of the engine's memory, MB", value=_own("growth_mb"), at_most=100),
            ),
        ),
    }
)
