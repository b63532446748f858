"""kubectl takes the commands of the guides, up to the cluster that is not there."""

import re
import shlex
import subprocess

import pytest

from support.kubernetes.kubernetes_tools import K8S, ROOT, TOOLS

pytestmark = pytest.mark.k8s

BLOCKS = re.findall(r"```bash\n(.*?)```", (K8S / "README.md").read_text(), flags=re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("kubectl")]


@pytest.mark.parametrize("command", COMMANDS)
def test_kubectl_takes_the_commands_of_the_guides(command: str) -> None:
    words = shlex.split(re.sub(r"\$\([^)]*\)", "pod/x", command), comments=True)
    done = subprocess.run(
        [TOOLS / "kubectl", "--server=http://127.0.0.1:1", "--request-timeout=2s", *words[1:]],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "refused" in done.stderr, done.stderr
