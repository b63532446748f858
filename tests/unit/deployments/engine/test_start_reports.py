from rayinfer.startup_steps import CountedStartupStep, startup_step
from rayinfer_deployments.engine.start_reports import StartReports, reports_path, written_steps


def seen(reports):
    return [(report.process, report.step.name, report.step.seconds is not None) for report in reports.new()]


def test_what_several_engines_do_is_read_once_and_in_order(tmp_path):
    path = tmp_path / "services" / "start.jsonl"
    with StartReports(path) as reports:
        assert seen(reports) == []
        with written_steps(path, "first"), startup_step("reading"):
            assert seen(reports) == [("first", "reading", False)]
        with written_steps(path, "second"):
            CountedStartupStep("compiling")(1, 1)
        assert seen(reports) == [("first", "reading", True), ("second", "compiling", True)]
        assert seen(reports) == []
    assert not path.exists()


def test_reports_have_counts_and_times(tmp_path):
    path = tmp_path / "start.jsonl"
    with StartReports(path) as reports, written_steps(path, "engine"):
        compiling = CountedStartupStep("compiling")
        compiling(0, 2)
        compiling(2, 2)
        begun, done = [report.step for report in reports.new()]
    assert (begun.num_done, begun.num_parts, begun.seconds) == (0, 2, None)
    assert (done.num_done, done.num_parts) == (2, 2)
    assert done.seconds >= 0


def test_a_start_that_is_over_is_no_matter_to_engines(tmp_path):
    path = tmp_path / "start.jsonl"
    with written_steps(path, "engine"), startup_step("reading"):  # the start was never waited for
        pass
    assert not path.exists()
    with StartReports(path), written_steps(path, "engine"):
        path.unlink()
        with startup_step("packing"):
            pass
    assert not path.exists()


def test_a_place_that_cannot_be_written_is_no_matter_to_the_command(tmp_path):
    (tmp_path / "file").touch()
    with StartReports(tmp_path / "file" / "start.jsonl") as reports:
        assert reports.new() == []


def test_unfinished_and_foreign_lines_are_left_out(tmp_path):
    path = tmp_path / "start.jsonl"
    line = b'{"process": "a", "step": {"name": "reading", "num_done": null, "num_parts": null, "seconds": 1.5}}\n'
    with StartReports(path) as reports, path.open("ab", buffering=0) as file:
        file.write(b'nonsense\n[]\n{"process": "a", "step": {"color": 1}}\n' + line[:30])
        assert reports.new() == []
        file.write(line[30:])
        assert seen(reports) == [("a", "reading", True)]


def test_only_the_services_user_reads_the_file_and_each_ray_has_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path))
    path = reports_path("127.0.0.1:6379")
    assert path.parent == tmp_path / "services"
    assert path != reports_path("127.0.0.1:6380")
    with StartReports(path):
        assert path.stat().st_mode & 0o777 == 0o600
    assert reports_path("[::1]:1/../x").parent == path.parent
