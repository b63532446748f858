"""Names that a file of settings gives twice."""

from pathlib import Path

import pytest
import yaml

from rayinfer.errors import ConfigError
from rayinfer_deployments.config_check import mistakes_in
from rayinfer_deployments.kubernetes.build_files import service_files
from rayinfer_deployments.strict_yaml import load_strictly


@pytest.mark.parametrize("text", ["a: 1\na: 2", "{a: 1, a: 1}", "x: [{y: {a: 1, b: 2, a: 3}}]"])
def test_a_name_that_is_given_twice_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match=r"(?s)a is given twice.*line"):
        load_strictly(text)


def test_merged_names_may_be_given_again() -> None:
    text = "one: &one {a: 1, b: 2}\ntwo: &two {<<: *one, a: 3}\nthree: {<<: *two, a: 4}"
    assert load_strictly(text)["three"] == {"a": 4, "b": 2}


def test_files_of_services_are_read_so(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text("app: {models: [{model: a}]}\nworkers: [{name: a}]\nrouters: 1\nrouters: 2\n")
    with pytest.raises(ConfigError, match=r"service\.yaml: no YAML: routers is given twice"):
        service_files(file)
    assert mistakes_in(file)[0].startswith("no YAML: routers is given twice")
