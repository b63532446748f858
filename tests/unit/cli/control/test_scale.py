import pytest

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.control.scale import engine_count, engines_asked_for


@pytest.fixture
def objectives(tmp_path):
    file = tmp_path / "objectives.yaml"
    file.write_text("max_replicas: 3\nttft_objective_s: 0.5\n")
    return file


def test_a_number_is_fixed_and_two_are_bounds():
    assert engines_asked_for(None, None) == {"num_replicas": 1}
    assert engines_asked_for("3", None) == {"num_replicas": 3}
    roles = {"prefill": 1, "decode": 2, "min_prompt_tokens": 1024}
    assert engines_asked_for(None, None, "prefill=1,decode=2") == {"num_replicas": 3, "roles": roles}
    assert engines_asked_for("5", None, "prefill=1, decode=2")["num_replicas"] == 5
    with pytest.raises(ConfigError, match="prefill=1,decode=2 is their form"):
        engines_asked_for(None, None, "prefill")
    bounds = engines_asked_for("0:4", None)["autoscaling"]
    assert (bounds["min_replicas"], bounds["max_replicas"]) == (0, 4)


def test_a_file_brings_objectives_and_the_command_line_may_bring_the_bounds(objectives):
    assert engines_asked_for(None, objectives)["autoscaling"]["max_replicas"] == 3
    both = engines_asked_for("2:5", objectives)["autoscaling"]
    assert (both["min_replicas"], both["max_replicas"], both["ttft_objective_s"]) == (2, 5, 0.5)


@pytest.mark.parametrize("text", ["0", "-1", "x", "1:", ":2", "3:2", "1:0"])
def test_what_is_no_number_of_engines_is_refused(text):
    with pytest.raises(ConfigError):
        engines_asked_for(text, None)


def test_a_fixed_number_and_objectives_exclude_each_other(objectives):
    with pytest.raises(ConfigError, match="--replicas 2"):
        engines_asked_for("2", objectives)


def test_scale_takes_a_number_or_the_word_for_the_way_back():
    assert (engine_count("3"), engine_count("auto")) == (3, None)
    for text in ("0", "-1", "1.5", "many", "2000"):
        with pytest.raises(ConfigError, match="expected a number of engines"):
            engine_count(text)
