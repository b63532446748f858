import subprocess
import sys

LIGHT = """
import sys
from rayinfer_deployments.cli import build_application
build_application()
print([name for name in ("torch", "ray", "transformers", "httpx", "fastapi", "rayinfer.llm") if name in sys.modules])
"""


def test_the_command_line_loads_no_room_before_a_command_runs():
    answer = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_version_is_printed():
    program = "from rayinfer_deployments.cli import main; import sys; sys.argv = ['rayinfer', '--version']; main()"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip().count(".") == 2


def test_what_a_service_is_made_of_loads_neither_torch_nor_transformers():
    program = "import sys, rayinfer_deployments.applications; print({'torch', 'transformers'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
