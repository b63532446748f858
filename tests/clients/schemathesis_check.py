"""schemathesis over the OpenAPI document of the servers, with a fixed seed; generation is replaced by a fake.

Run by path with the project's Python; `--schemathesis` names the program, which lives in an environment of its own.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.traces.trace_store import TraceStore
from support.fakes.fake_generator import FakeGenerator
from support.services.served_application import served
from support.tiny_models.tiny_checkpoints import save_tokenizer

VOCAB_SIZE = 384
# Their ranges depend on each other, on the prompt or on the vocabulary, which a schema cannot say.
DEPENDENT = "generate generate_stream chat_tokenize tokenize invocations api decode score v1/score v1/images/classify"
DEPENDENT_PATHS = f"^/({'|'.join(DEPENDENT.split())})?$"
SEED, NUM_EXAMPLES = 19, 50


@contextmanager
def served_from(folder: Path) -> Iterator[str]:
    """Serve the application over a fake generator on a free port; yields its address."""
    save_tokenizer(folder, VOCAB_SIZE)
    model = ServedModel(
        name="tiny",
        generator=FakeGenerator(vocab_size=VOCAB_SIZE, max_model_len=8192),
        tokenizer=Tokenizer.from_folder(folder),
        chat_template=ChatTemplate.from_folder(folder),
        created=1_700_000_000,
    )
    app = build_app({"tiny": model}, ServiceMetrics(), traces=TraceStore())
    with served(app) as address:
        yield address


def main() -> int:
    """Run schemathesis; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemathesis", default="schemathesis", help="the program")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--max-examples", type=int, default=NUM_EXAMPLES)
    parser.add_argument("options", nargs="*", help="more options of schemathesis, behind --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served_from(Path(folder)) as address:
        command = [arguments.schemathesis, "run", f"{address}/openapi.json", "--checks", "all"]
        command += ["--seed", str(arguments.seed), "--max-examples", str(arguments.max_examples), *arguments.options]
        others = subprocess.run([*command, "--exclude-path-regex", DEPENDENT_PATHS], check=False, cwd=folder)
        command += ["--exclude-checks", "positive_data_acceptance,negative_data_rejection"]
        tgi = subprocess.run([*command, "--include-path-regex", DEPENDENT_PATHS], check=False, cwd=folder)
        return others.returncode or tgi.returncode


if __name__ == "__main__":
    sys.exit(main())
