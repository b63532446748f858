"""Runner of strangers' clients against a running service, each in an environment of its own: `make test-clients`.

    python tests/clients/run.py [CLIENT ...]

Environments are made once, below `.clients/`. Their rows of the table in README.md are written anew.
"""

import argparse
import contextlib
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
for folder in (ROOT / "tests", ROOT):
    sys.path.insert(0, str(folder))
from rayinfer.config import cache_folder  # noqa: E402
from rayinfer.models.checkpoints.sources import resolve_model  # noqa: E402
from support.faults.cli_processes import serving  # noqa: E402
from support.services.free_ports import free_port  # noqa: E402
from support.tiny_models.tiny_encoders import make_tiny_encoder  # noqa: E402

ENVIRONMENTS = ROOT / ".clients"
MODEL = "smollm2-135m"
LIMIT_S = 900.0
HTTPX = "httpx==0.28.1"  # sends what no client would, and shows what it gets
TABLE_BEGINS = "<!-- table -->\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """A client, what it needs, and the script of its checks."""

    name: str
    script: str
    requirements: tuple[str, ...]  # of pip; of npm for scripts of Node
    service: str | None = "default"  # which of SERVICES it talks to; None: its script starts what it needs
    arguments: tuple[str, ...] = ("url", "model")  # keys of the service's facts
    uses_our_packages: bool = False  # torch and transformers are large, and the same

    @property
    def is_node(self) -> bool:
        """Return whether the client is a package of Node."""
        return self.script.endswith(".mjs")


SERVICES = {  # three models are what two cores have room for
    "default": ("all-minilm-l6-v2", "{folder}/classifier", "--with-examples", "--trust-request-chat-template"),
    "float32": ("--max-model-len", 2048, "--dtype", "float32", "--generation-config", "none"),
}
CLIENTS = (
    Client(name="openai", script="openai_check.py", requirements=("openai==3.51.0",)),
    Client(name="openai (Responses)", script="openai_responses_check.py", requirements=("openai==3.51.0",)),
    Client(name="openai (Node)", script="openai_node_check.mjs", requirements=("openai@7.55.0",)),
    Client(name="litellm", script="litellm_check.py", requirements=("litellm==1.99.4",)),
    Client(name="langchain-openai", script="langchain_check.py", requirements=("langchain-openai==1.7.3",)),
    Client(
        name="lm-eval",
        script="lm_eval_check.py",
        requirements=("lm-eval[api]==0.4.13",),
        service="float32",
        arguments=("url", "model", "folder"),
        uses_our_packages=True,
    ),
    Client(
        name="tritonclient",
        script="tritonclient_check.py",
        requirements=("tritonclient[all]==2.73.0", "ml_dtypes"),
        arguments=("url", "grpc"),
    ),
    Client(
        name="text-generation",
        script="text_generation_check.py",
        requirements=("text-generation==0.7.0",),
        arguments=("url",),
    ),
    Client(
        name="huggingface_hub",
        script="huggingface_hub_check.py",
        requirements=("huggingface_hub==2.4.0", "aiohttp", "numpy"),
        arguments=("url",),
    ),
    Client(name="anthropic", script="anthropic_check.py", requirements=("anthropic==2.13.0",)),
    Client(name="instructor", script="instructor_check.py", requirements=("instructor==1.17.0",)),
    Client(name="pydantic-ai", script="pydantic_ai_check.py", requirements=("pydantic-ai-slim[openai]==2.68.0",)),
    Client(name="ollama", script="ollama_check.py", requirements=("ollama==0.6.3",)),
    Client(name="fields of chats", script="openai_fields_check.py", requirements=(HTTPX,)),
    Client(name="fields of Responses", script="responses_fields_check.py", requirements=(HTTPX,)),
    Client(name="fields of Messages and Ollama", script="messages_fields_check.py", requirements=(HTTPX,)),
    Client(name="schemathesis", script="schemathesis_check.py", requirements=("schemathesis==4.32.5",), service=None),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Printed lines of one client's checks, with their exit code and time."""

    client: Client
    lines: tuple[str, ...]
    exit_code: int
    seconds: float

    @property
    def num_passed(self) -> int:
        """Return the number of checks that passed: lines, or the whole of a script that prints none."""
        own = sum(line.startswith("ok ") for line in self.lines)
        return own or sum(not line.startswith(("FAILED ", "  ")) for line in self.lines) or int(self.exit_code == 0)

    @property
    def failures(self) -> tuple[str, ...]:
        """Return what failed; a script that ended early has failed too."""
        failed = tuple(line for line in self.lines if line.startswith("FAILED "))
        return failed or (() if self.exit_code == 0 else (f"FAILED exit code {self.exit_code}",))


def environment(client: Client) -> Path:
    """Return the client's folder with its packages installed."""
    digest = hashlib.sha256(repr((client.requirements, client.uses_our_packages)).encode()).hexdigest()[:12]
    folder = ENVIRONMENTS / f"{Path(client.script).stem}-{digest}"
    if (folder / ".installed").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if client.is_node:
        command: list[str | Path] = ["npm", "install", "--silent", "--prefix", folder, *client.requirements]
    else:
        venv.create(folder, with_pip=True, clear=True)
        command = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if client.uses_our_packages:
            (site,) = folder.glob("lib/python*/site-packages")
            ours = next(path for path in sys.path if path.endswith("site-packages"))
            (site / "ours.pth").write_text(ours)
            command += ["-c", ROOT / "constraints.txt"]
        command += client.requirements
    subprocess.run(list(map(str, command)), check=True)
    (folder / ".installed").touch()
    return folder


def run_client(client: Client, facts: Mapping[str, str]) -> Outcome:
    """Run a client's checks against a service, of which they get the facts that they ask for."""
    folder, started = environment(client), time.monotonic()
    if client.is_node:
        script = folder / client.script  # where Node looks for packages
        script.write_text((HERE / client.script).read_text())
        command = ["node", str(script)]
    elif client.service is None:
        command = [sys.executable, str(HERE / client.script), f"--{client.name}", str(folder / "bin" / client.name)]
    else:
        command = [str(folder / "bin/python"), str(HERE / client.script)]
    arguments = [facts[name] for name in client.arguments] if facts else []
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ | {"PYTHONPATH": os.environ.get("PYTHONPATH", "") if client.service is None else ""},
    )
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr)
    lines = () if client.service is None else tuple(filter(None, done.stdout.splitlines()))
    return Outcome(client, lines, done.returncode, time.monotonic() - started)


@contextlib.contextmanager
def running(name: str | None) -> Iterator[dict[str, str]]:
    """Start one of SERVICES and wait until it is ready; yields its facts."""
    if name is None:
        yield {}
        return
    grpc_port = free_port()
    with contextlib.ExitStack() as stack:
        tiny = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_tiny_encoder(tiny / "classifier", "Bert", "ForSequenceClassification")
        arguments = [str(each).format(folder=tiny) for each in SERVICES[name]]
        command = (MODEL, *arguments, "--grpc-port", grpc_port)
        service = stack.enter_context(serving(*command, cache=cache_folder()))
        service.wait_for_line("ready: ", LIMIT_S)
        folder = str(resolve_model(MODEL))
        yield {"url": service.url, "model": MODEL, "folder": folder, "grpc": f"127.0.0.1:{grpc_port}"}


def write_table(outcomes: Sequence[Outcome]) -> None:
    """Write the rows of these clients anew in README.md, in the order of CLIENTS; other rows stay."""
    readme = HERE / "README.md"
    before, _, table = readme.read_text().partition(TABLE_BEGINS)
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    for outcome in outcomes:
        failed = "; ".join(line.removeprefix("FAILED ") for line in outcome.failures) or "none"
        cells = (outcome.client.name, ", ".join(outcome.client.requirements), outcome.num_passed, failed)
        rows[outcome.client.name] = f"| {' | '.join(map(str, cells))} | {outcome.seconds:.0f} | {commit} |"
    lines = ["| client | versions | checks | failed | seconds | commit |", "|---|---|---|---|---|---|"]
    lines += [rows[client.name] for client in CLIENTS if client.name in rows]
    where = f"Python {platform.python_version()}, `{MODEL}` on a CPU."
    readme.write_text(f"{before}{TABLE_BEGINS}\n" + "\n".join(lines) + f"\n\n{where}\n")


def main() -> int:
    """Run the clients that were asked for; returns 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", help="names of clients; all by default")
    wanted = parser.parse_args().clients
    clients = [client for client in CLIENTS if not wanted or client.name in wanted]
    console, outcomes = Console(), []
    for service_name in dict.fromkeys(client.service for client in clients):
        ours = [client for client in clients if client.service == service_name]
        for client in ours:
            console.print(f"installing {client.name}: {', '.join(client.requirements)}")
            environment(client)
        with running(service_name) as facts:
            for client in ours:
                outcomes.append(run_client(client, facts))
                console.print(f"{client.name}:", *outcomes[-1].lines, sep="\n  ", markup=False)
    table = Table("client", "passed", "failed", "seconds")
    for outcome in outcomes:
        table.add_row(
            outcome.client.name, str(outcome.num_passed), "\n".join(outcome.failures), f"{outcome.seconds:.0f}"
        )
    console.print(table)
    write_table(outcomes)
    return int(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
