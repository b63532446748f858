"""The rules themselves, on small sources that break them."""

import pytest

from support.architecture import floors as house
from support.architecture import rules as rules
from support.architecture import rules_of_tests
from support.architecture.sources import find_sources


@pytest.fixture
def sources_of(tmp_path):
    """Write files below the three packages and read them back: sources_of({"rayinfer/engine/x.py": "..."})."""

    def write(files):
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return find_sources({package: tmp_path / package for package in rules.OWN_PACKAGES})

    return write


@pytest.fixture
def tests_of(tmp_path):
    """Write one test file and read it back: tests_of({"unit/test_x.py": "..."})."""

    def write(files):
        ((path, text),) = files.items()
        file = tmp_path / path.partition("/")[0] / "tests" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return find_sources({"tests": tmp_path / path.partition("/")[0] / "tests"})

    return write


@pytest.mark.parametrize(
    "text",
    [
        "from rayinfer.engine.loop.engine import Engine\n",
        "import rayinfer.engine\n",
        "from rayinfer import engine\n",
        "def f():\n    from rayinfer.engine import engine\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rayinfer.engine.loop.engine import Engine\n",
        "from importlib import import_module\nimport_module('rayinfer.engine.loop.engine')\n",
        "from rayinfer_deployments import applications\n",
        "from rayinfer.models import registry\n",  # layers and models: one floor up
        "from rayinfer.kv_cache.block_manager import BlockManager\n",  # the same floor
        "from rayinfer import LLM\n",  # a lazy export hides where it goes
        "from . import linear\n",
        "from rayinfer.attic import chest\n",  # on no floor
    ],
)
def test_an_import_that_does_not_go_down_is_caught(sources_of, text):
    assert len(rules.upward_imports(sources_of({"rayinfer/layers/norm.py": text}))) == 1


def test_imports_of_the_own_room_of_lower_floors_and_of_others_are_allowed(sources_of):
    text = (
        "import torch\nfrom rayinfer import __version__\nfrom rayinfer import config\n"
        "from rayinfer_kernels import ops\n"
        "from rayinfer.errors import ConfigError\nfrom rayinfer.layers.linear import Linear\n"
    )
    assert rules.upward_imports(sources_of({"rayinfer/layers/norm.py": text})) == []


def test_neighbors_on_one_floor_are_found_with_their_direction(sources_of):
    sources = sources_of({"rayinfer/layers/norm.py": "from rayinfer.kv_cache.block_manager import BlockManager\n"})
    assert rules.used_neighbors(sources) == {("rayinfer.layers", "rayinfer.kv_cache")}


def test_a_module_on_no_floor_is_caught(sources_of):
    complaints = rules.misplaced_modules(sources_of({"rayinfer/attic/chest.py": "", "rayinfer/layers/norm.py": ""}))
    assert len(complaints) == 1
    assert "rayinfer.attic.chest is on 0 floors" in complaints[0]


def test_every_room_is_listed_once_and_lies_below_the_room_around_it():
    floors = {room: number for number, rooms in enumerate(house.FLOORS) for room in rooms}
    assert len(floors) == sum(map(len, house.FLOORS))
    assert [
        room
        for room, floor in floors.items()
        for around, above in floors.items()
        if room.startswith(around + ".") and floor >= above
    ] == []


@pytest.mark.parametrize("text", ["import ray\n", "from ray import serve\n", "def f():\n    import ray.serve\n"])
def test_ray_outside_its_rooms_is_caught(sources_of, text):
    files = {
        "rayinfer/engine/loop/engine.py": text,
        "rayinfer/jobs/job.py": text,
        "rayinfer_deployments/router.py": text,
    }
    complaints = rules.stray_ray_imports(sources_of(files))
    assert len(complaints) == 1
    assert "rayinfer.engine.loop.engine" in complaints[0]


def test_a_package_whose_name_only_begins_like_ray_is_not_ray(sources_of):
    assert rules.stray_ray_imports(sources_of({"rayinfer/llm.py": "from rayinfer.engine import engine\n"})) == []


@pytest.mark.parametrize(
    "text",
    [
        "from rayinfer_kernels.packed_weight import WeightFormat\n",
        "from rayinfer_kernels import reference\n",
        "from importlib import import_module\nimport_module('rayinfer_kernels.gpu.decode_attention')\n",
    ],
)
def test_an_import_past_the_front_of_the_kernels_is_caught(sources_of, text):
    files = {
        "rayinfer/layers/linear.py": text,
        "rayinfer/benchmark/gpu/decode.py": text,
        "rayinfer_kernels/reference/__init__.py": text,
    }
    complaints = rules.kernel_internals(sources_of(files))
    assert [complaint.split()[0] for complaint in complaints] == ["rayinfer.layers.linear"]


def test_the_front_of_the_kernels_may_be_imported(sources_of):
    text = "import rayinfer_kernels\nfrom rayinfer_kernels import ops\nfrom rayinfer_kernels.ops import linear\n"
    assert rules.kernel_internals(sources_of({"rayinfer/layers/linear.py": text})) == []


def test_an_import_inside_a_function_is_caught_except_in_the_command_line(sources_of):
    late = "def f():\n    import json\n    return json\n"
    sources = sources_of(
        {
            "rayinfer/llm.py": late,
            "rayinfer/__init__.py": late,
            "rayinfer_deployments/cli.py": late,
            "rayinfer_deployments/router/router.py": late,
        }
    )
    assert [complaint.split()[0] for complaint in rules.late_imports(sources)] == [
        "rayinfer.llm",
        "rayinfer_deployments.router.router",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import os\nHOME = os.environ['HOME']\n",
        "import os\nHOME = os.getenv('HOME')\n",
        "from os import environ\n",
        "import os\n\ndef f():\n    os.putenv('A', 'b')\n",
    ],
)
def test_a_look_at_the_environment_outside_the_settings_is_caught(sources_of, text):
    complaints = rules.environment_uses(sources_of({"rayinfer/llm.py": text, "rayinfer/config.py": text}))
    assert len(complaints) == 1
    assert "rayinfer.llm" in complaints[0]


def test_a_file_and_a_function_one_line_too_long_are_caught(sources_of):
    body = "    pass\n"
    sources = sources_of(
        {
            "rayinfer/fits.py": "x = 1\n" * house.MAX_FILE_LINES,
            "rayinfer/too_long.py": "x = 1\n" * (house.MAX_FILE_LINES + 1),
            "rayinfer/works.py": "def works():\n" + body * (house.MAX_FUNCTION_LINES - 1),
            "rayinfer/sprawls.py": "async def sprawls():\n" + body * house.MAX_FUNCTION_LINES,
        }
    )
    assert [complaint.split()[0] for complaint in rules.oversized(sources)] == ["rayinfer.sprawls", "rayinfer.too_long"]


def test_a_name_that_says_nothing_is_caught(sources_of):
    sources = sources_of(
        {f"rayinfer/{name}.py": "" for name in ("utils", "block_manager", "request_handler", "database")}
    )
    assert [complaint.split(":")[0] for complaint in rules.empty_names(sources)] == [
        "rayinfer.request_handler",
        "rayinfer.utils",
    ]


@pytest.mark.parametrize(
    "text",
    [
        '"""What a step computes."""\n',
        '"""\nWhose row it is."""\n',
        'class Place:\n    """Where a rank stands."""\n',
        'def f():\n    class Inner:\n        """How one rank ended."""\n',
    ],
)
def test_a_docstring_that_begins_with_a_question_word_is_caught(sources_of, text):
    complaints = rules.question_docstrings(sources_of({"rayinfer/llm.py": text}))
    assert len(complaints) == 1
    assert "rayinfer.llm" in complaints[0]


def test_noun_phrases_and_docstrings_of_functions_are_no_questions(sources_of):
    text = (
        '"""Whatsoever; a step\'s results: what it returns."""\n'
        'class Engine:\n    is_alive = True\n\n    def lives(self):\n        """Whether it lives."""\n'
    )
    assert rules.question_docstrings(sources_of({"rayinfer/llm.py": text})) == []


def test_a_retired_word_is_found_in_every_kind_of_name(sources_of):
    text = '''"""Queue that nobody tends."""\n\nclass FrontDoor:\n    def obey_orders(self, twin): ...\n'''
    files = {"rayinfer/layers/pulse.py": text, "rayinfer/layers/pulsed.py": "def tellurium(who_else): ..."}
    found = [complaint.split(" has ")[1].split()[0] for complaint in rules.retired_words(sources_of(files))]
    assert sorted(found) == ["'door'", "'nobody'", "'obey'", "'pulse'", "'twin'", "'who'"]


def test_a_crowded_folder_is_found(sources_of):
    files = {f"rayinfer/layers/part_{number}.py": "" for number in range(21)} | {"rayinfer/layers/__init__.py": ""}
    assert len(rules.crowded_folders(sources_of(files))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from rayinfer.layers import norm\ndef test(monkeypatch):\n    monkeypatch.setattr(norm, 'EPS', 1)\n",
        "from rayinfer.layers import norm\ndef test(monkeypatch):\n    monkeypatch.setattr(norm.torch, 'add', 1)\n",
        "from rayinfer.layers.norm import Norm\ndef test(monkeypatch):\n    monkeypatch.delattr(Norm, 'eps')\n",
        "from rayinfer.layers.norm import Norm\nnorm = Norm(3)\nsetattr(norm, 'eps', 1)\n",
        "import rayinfer_kernels.ops\npatch.object(rayinfer_kernels.ops, 'rms_norm')\n",
        "def test(monkeypatch):\n    monkeypatch.setattr('rayinfer_kernels.ops.rms_norm', None)\n",
        "with mock.patch('rayinfer.layers.norm.EPS', 1):\n    pass\n",
    ],
)
def test_a_test_that_replaces_our_code_is_caught(tests_of, text):
    assert len(rules_of_tests.patched_code(tests_of({"unit/test_norm.py": text}))) == 1
    assert rules_of_tests.patched_code(tests_of({"support/faults/break_norm.py": text})) == []


def test_other_packages_and_the_environment_may_be_replaced(tests_of):
    text = (
        "import torch\nfrom rayinfer.layers.norm import Norm\ndef test(monkeypatch):\n"
        "    monkeypatch.setattr(torch.cuda, 'empty_cache', Norm)\n    monkeypatch.setattr('sys.stderr', Norm())\n"
        "    monkeypatch.setenv('RAYINFER_CACHE', '/tmp')\n"
    )
    assert rules_of_tests.patched_code(tests_of({"unit/test_norm.py": text})) == []


@pytest.mark.parametrize(
    "text",
    [
        "from rayinfer.layers.norm import _scaled\n",
        "from rayinfer.layers.norm import Norm\nNorm()._eps\n",
        "def test(norm):\n    norm._eps = 1\n",
        "def test(norm):\n    getattr(norm, '_eps')\n",
        "class Other(Norm):\n    def run(self):\n        super()._scaled()\n",
    ],
)
def test_a_test_that_uses_a_private_name_is_caught(tests_of, sources_of, text):
    sources = sources_of({"rayinfer/layers/norm.py": "class Norm:\n    _eps = 1\n    def _scaled(self): ...\n"})
    assert len(rules_of_tests.private_uses(tests_of({"unit/test_norm.py": text}), sources)) == 1
    own = "class Fake:\n    def __init__(self):\n        self._eps = 1\nlimits._replace(a=1)\nray._private\n"
    assert rules_of_tests.private_uses(tests_of({"unit/test_norm.py": own}), sources) == []
