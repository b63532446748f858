"""Report of the GPU benchmark: rows with roofline times and goals, as JSON, Markdown and a figure."""

from dataclasses import dataclass, field
from pathlib import Path

from rayinfer.benchmark.gpu.cases import CASES, Case
from rayinfer.benchmark.gpu.decode_kernel import DecodeRow
from rayinfer.benchmark.gpu.skinny_gemm import ProductRow
from rayinfer.benchmark.report import Environment, Table, describe_environment, write_json, write_markdown
from rayinfer.benchmark.svg import Drawing

HEADS = ("", "model", "measured", "roofline", "of the roofline", "goal", "reached", "GPU idle between steps")
KERNEL_HEADS = ("queries:keys", "requests", "context", "keys and values", "µs", "GB/s", "of a copy")
PRODUCT_HEADS = ("rows", "outputs", "inputs", "µs", "torch's µs", "of a copy", "torch's")
WIDTH, LEFT, BAR, ROW_HEIGHT, TOP = 760, 250, 16, 34, 58
DRY_RUN = "**A dry run with tiny shapes: nothing here says anything about a GPU.**"


@dataclass(kw_only=True, slots=True)
class Row:
    """Figures of one case; `share` is the fraction of the roofline that was reached."""

    name: str
    model: str
    about: str
    seconds: list[float] = field(default_factory=list)  # of each run: all of it, or one token of a stream
    floor_s: float | None = None  # roofline time
    share: float | None = None
    rate: str = ""  # in the units of the case
    idle_us: float | None = None  # of the GPU between two decoding steps
    goal: str = ""
    is_done: bool | None = None  # whether the first goal was reached; None where there is none
    error: str = ""

    def cells(self) -> tuple[object, ...]:
        """Return a row below HEADS."""
        return (
            self.name,
            self.model,
            self.error or self.rate,
            "" if self.floor_s is None else f"{1e3 * self.floor_s:,.3g} ms",
            "" if self.share is None else f"{self.share:.0%}",
            self.goal,
            {None: "", True: "yes", False: "no"}[self.is_done],
            "" if self.idle_us is None else f"{self.idle_us:.0f} µs",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow:
    """The decode kernel on one shape, with keys and values of one type."""

    kv_dtype: str
    shape: DecodeRow

    def cells(self) -> tuple[object, ...]:
        """Return a row below KERNEL_HEADS."""
        shape = self.shape
        figures = f"{1e6 * shape.seconds:.1f}", f"{shape.bytes_per_s / 1e9:,.0f}", f"{shape.share_of_copy:.0%}"
        return f"{shape.group}:1", shape.batch, shape.context, self.kv_dtype, *figures


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Condition that must hold before figures mean anything."""

    name: str
    is_right: bool
    detail: str

    def __str__(self) -> str:
        return f"{'right' if self.is_right else 'WRONG'}: {self.name}: {self.detail}"


@dataclass(kw_only=True, slots=True)
class GpuReport:
    """Result of the GPU benchmark."""

    card: str
    is_dry_run: bool
    copy_bytes_per_s: float
    matmul_flops_per_s: float
    command: str
    limit_s: float  # no case begins later
    took_s: float = 0.0
    shortened: list[str] = field(default_factory=list)  # left out or run less often, out of time
    rows: list[Row] = field(default_factory=list)
    kernels: list[KernelRow] = field(default_factory=list)
    products: list[ProductRow] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return cases, kernel shapes and skinny GEMMs, as far as they were measured."""
        title = describe_limits(self.card, self.copy_bytes_per_s, self.matmul_flops_per_s)
        tables = [Table(title, HEADS, [row.cells() for row in self.rows])]
        if self.kernels:
            tables.append(Table("Decode attention alone", KERNEL_HEADS, [each.cells() for each in self.kernels]))
        if self.products:
            tables.append(Table("Skinny GEMMs alone", PRODUCT_HEADS, [_product_cells(each) for each in self.products]))
        return tables

    def notes(self) -> list[str]:
        """Return checks, time, and everything that was left out."""
        notes = [DRY_RUN] if self.is_dry_run else []
        notes.append("\n".join(["Checks in the same run:", "", *(f"- {each}" for each in self.checks)]))
        notes.append(f"It took {self.took_s:.0f} s of {self.limit_s:.0f} s.")
        if self.shortened:
            omitted = [f"- {each}" for each in self.shortened]
            notes.append("\n".join(["**Not everything was measured, out of time:**", "", *omitted]))
        return notes

    def write(self, folder: Path, name: str) -> None:
        """Write NAME.json, NAME.md and NAME.svg."""
        write_json(self, folder / f"{name}.json")
        (folder / f"{name}.svg").write_text(self.svg())
        notes = [*self.notes(), f"![Fractions of the roofline]({name}.svg)", f"{self.environment}: `{self.command}`"]
        write_markdown(folder / f"{name}.md", "How close to the roofline", self.tables(), *notes)

    def svg(self) -> str:
        """Draw the fraction of the roofline that each case reached, with the goal as a line."""
        drawing, width = Drawing(WIDTH, "Speed as a fraction of the roofline"), WIDTH - LEFT - 60
        drawing.text(0, 16, "Speed as a fraction of the roofline", "title")
        drawing.text(0, 34, describe_limits(self.card, self.copy_bytes_per_s, self.matmul_flops_per_s), "note")
        rows = [row for row in self.rows if row.share is not None]
        for number, row in enumerate(rows):
            y, share = TOP + number * ROW_HEIGHT, row.share or 0.0
            drawing.text(0, y + 12, f"{row.name}: {row.model}")
            drawing.text(0, y + 26, row.rate[:44], "note")
            drawing.bar(LEFT, y, width, BAR, "track")
            drawing.bar(LEFT, y, width * min(1.0, share), BAR, "blue")
            drawing.text(LEFT + width + 8, y + 13, f"{share:.0%}")
            if row.goal.endswith("of the roofline"):
                x = LEFT + width * float(row.goal.partition("%")[0]) / 100
                drawing.line([(x, y - 3), (x, y + BAR + 3)], "green")
        return drawing.markup(TOP + ROW_HEIGHT * len(rows) + 8)


def describe_limits(card: str, copy_bytes_per_s: float, matmul_flops_per_s: float) -> str:
    """Return a card's name and its peak rates."""
    return (
        f"{card}: copies {copy_bytes_per_s / 1e12:.2f} TB/s, read and written together, and multiplies "
        f"{matmul_flops_per_s / 1e12:.0f} TFLOP/s in bfloat16."
    )


def new_row(case: Case) -> Row:
    """Return a row without figures."""
    goal = ""
    if case.done is not None:
        number = "{:.0%}" if case.goal_unit == "of the roofline" else "{:g}"
        wanted = [number.format(each) for each in (case.done, case.aim) if each is not None]
        goal = f"{', then '.join(wanted)} {case.goal_unit}"
    return Row(name=case.name, model=case.model, about=case.about, goal=goal)


def judge(row: Row, rows: list[Row]) -> None:
    """Record whether the first goal was reached."""
    case = next(case for case in CASES if case.name == row.name)
    if case.done is None or row.error:
        return
    if case.goal_unit == "ms for a token":
        row.is_done = 1e3 * min(row.seconds) <= case.done
    elif case.goal_unit == "times B1":
        first = next((each for each in rows if each.name == "B1" and each.seconds), None)
        row.is_done = None if first is None else min(first.seconds) / min(row.seconds) >= case.done
    else:
        row.is_done = row.share is not None and row.share >= case.done


def _product_cells(row: ProductRow) -> tuple[object, ...]:
    times = (f"{1e6 * seconds:.1f}" for seconds in (row.seconds, row.torch_seconds))
    shares = (f"{share:.0%}" for share in (row.share_of_copy, row.torch_share_of_copy))
    return row.num_rows, row.outputs, row.inputs, *times, *shares
