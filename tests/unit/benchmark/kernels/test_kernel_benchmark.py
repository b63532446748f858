import json
import math
import platform
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

import rayinfer_kernels
from rayinfer.benchmark.kernels.kernel_benchmark import (
    DTYPES,
    KernelReport,
    Limits,
    measure_kernels,
    run_kernel_benchmark,
)
from rayinfer.benchmark.kernels.kernel_cases import FORMATS, Sizes, kernel_cases
from rayinfer.benchmark.kernels.kernel_report import roofline_svg, write_kernel_report
from rayinfer.benchmark.peers.machine import processor_kind
from rayinfer.errors import RayinferError
from rayinfer_deployments.cli import build_application

TINY = Sizes(rows=(1, 3), shapes=((64, 96),), cold_bytes=2**14, context=32, elementwise=(4, 64))


def test_every_case_computes_what_torch_computes(compiled_kernels):
    torch.manual_seed(0)
    operations = set()
    for case in kernel_cases(TINY):
        result = case.run()
        assert torch.isfinite(result).all(), case.operation
        operations.add((case.operation, case.number))
        if case.run_torch is not None:
            tolerance = 1e-4 if case.number == "float32" else 5e-2
            torch.testing.assert_close(result, case.run_torch(), rtol=tolerance, atol=tolerance)
    assert {("linear", name) for name in FORMATS} < operations
    assert {name for name, _ in operations} > {"gelu", "silu_and_mul", "layer_norm", "rms_norm", "attention, decode"}


def test_shares_are_those_of_the_limit_that_binds(compiled_kernels):
    log = []
    limits, results = measure_kernels(TINY, log.append, case_s=0.0)
    assert set(limits.gop_s) == set(DTYPES)
    assert all(rate > 0.1 for rate in limits.gop_s.values())
    groups = {(result.operation, result.number) for result in results}
    assert len(log) == len(results) + 1 + len(groups)
    rates = {**limits.gop_s, "int8": limits.gop_s["bfloat16"], "int8-dynamic": limits.gop_s["int8"]}
    for result in results:
        reading = result.gb_s / limits.read_gb_s
        computing = result.gop_s / rates.get(result.number, limits.gop_s["int8"])
        assert math.isclose(result.share, max(reading, computing), rel_tol=1e-6)
        assert result.is_memory_bound == (reading >= computing)


def test_the_best_limits_of_the_run_count(compiled_kernels):
    read = iter([2.0, 5.0, 3.0])
    limits, results = measure_kernels(TINY, lambda _: None, 0.0, lambda *_: next(read, 1.0))
    assert limits.read_gb_s == 5.0
    assert all(result.share >= result.gb_s / 5.0 for result in results)


def test_large_results_take_memory_that_was_freed():
    code = (
        "import resource, torch\n"
        "from rayinfer.benchmark.kernels.kernel_benchmark import keep_freed_memory\n"
        "keep_freed_memory()\n"
        "faults = []\n"
        "for _ in range(10):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    torch.empty(50 << 20, dtype=torch.uint8).fill_(1)\n"
        "    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
        "print(min(faults))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if platform.libc_ver()[0] == "glibc":
        assert int(done.stdout) < 100  # a fresh one has 12,800 pages


def test_a_child_process_measures_and_three_files_are_written(kernel_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("RAYINFER_CACHE", str(kernel_folder.parent))
    log = []
    limits = {"ATEN_CPU_CAPABILITY": "default"}
    report = run_kernel_benchmark("native", limits, 1, TINY, log.append, case_s=0.0, command="bench")
    assert (report.kernels, report.num_threads) == (rayinfer_kernels.runnable_kernel_paths()[0], 1)
    assert "linear, int4, 64 to 96, rows: 3" in log
    files = write_kernel_report(report, tmp_path)
    stem = f"kernels-{processor_kind()}-{report.kernels}"
    assert [file.name for file in files] == [f"{stem}.{suffix}" for suffix in ("json", "md", "svg")]
    assert len(json.loads(files[0].read_text())["results"]) == len(report.results)
    assert "linear, int8-dynamic" in files[1].read_text()
    points = ElementTree.fromstring(files[2].read_text()).findall("{http://www.w3.org/2000/svg}rect")
    assert len(points) == len(FORMATS) * (1 + len(TINY.rows))  # with the legend


def test_a_measuring_process_that_fails_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path))
    with pytest.raises(RayinferError, match="the measuring process ended with exit code 1"):
        run_kernel_benchmark("no-such-isa", {}, 1, TINY, lambda text: None)


def test_a_plot_has_room_for_rates_above_the_roof(compiled_kernels):
    _, results = measure_kernels(TINY, lambda text: None, case_s=0.0)
    limits = Limits(gop_s=dict.fromkeys(DTYPES, 0.01), read_gb_s=0.01)
    ElementTree.fromstring(roofline_svg(KernelReport(kernels="avx2", num_threads=1, limits=limits, results=results)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--formats", "int8,fp4"), "formats must be some of float32,bfloat16,int8,int8-dynamic,int4, got fp4"),
        (("--rows", "1,0"), "rows must be numbers from 1, got 0"),
        (("--kernels", "sse9"), "'sse9'"),
    ],
)
def test_wrong_options_are_refused(arguments, message):
    result = CliRunner().invoke(build_application(), ["bench", "kernels", *arguments])
    assert result.exit_code != 0
    assert message in result.output
