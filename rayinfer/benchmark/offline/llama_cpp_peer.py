"""llama.cpp as a peer of speculative decoding: drafts of its server, and its program for lookup decoding."""

import json
import re
import shlex
import subprocess
import urllib.error
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request

from rayinfer.benchmark.offline.speculation_report import OFF
from rayinfer.benchmark.offline.speculation_runs import Run, Work
from rayinfer.benchmark.peers.processes import DIRECT, RUN_TIMEOUT_S, last_line, running_server
from rayinfer.benchmark.peers.systems import LLAMA_CPP, Setup, SystemUnderTest, output_of
from rayinfer.errors import ConfigError, RayinferError
from rayinfer.tokenization.tokenizer import Tokenizer

SERVER, LOOKUP = "llama-server", "llama-lookup"
MODEL_FILE = "bf16.gguf"
CONTEXT_STEP = 256  # llama.cpp rounds a stream's context up to it
SPARE_TOKENS = 72  # of a stream's context: as many as its longest draft, and a few
# Greedy sampling by its cheapest chain; the default one has seven more samplers, which change nothing then.
GREEDY = {"temperature": 0.0, "samplers": ["top_k"], "top_k": 1}
GREEDY_OPTIONS = ("--temp", "0", "--samplers", "top_k", "--top-k", "1")
INSTALLING = 'see "Installing peers" in rayinfer/benchmark/README.md'


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerMode:
    """A way to draft tokens without a second model; options that are left out have llama.cpp's defaults."""

    program: str = SERVER
    options: Sequence[str] = ()

    def has_streams(self, number: int) -> bool:
        """Return whether it answers so many prompts at once."""
        return self.program == SERVER or number == 1


def _ngrams(kind: str, **options: int) -> PeerMode:
    """Return a mode of the server, with options of this kind of n-grams."""
    settings = [part for name, value in options.items() for part in (f"--spec-{kind}-{name}", str(value))]
    return PeerMode(options=("--spec-type", kind, *(part.replace("_", "-") for part in settings)))


def _lookup(num_drafts: int) -> PeerMode:
    return PeerMode(program=LOOKUP, options=("--spec-draft-n-max", str(num_drafts)))


# By name. Those of llama.cpp's docs/speculative.md, with its defaults and for shorter repetitions; and llama-lookup.
MODES: Mapping[str, PeerMode] = {
    OFF: PeerMode(),
    **{f"lookup {number}": _lookup(number) for number in (3, 8, 16)},  # 3 is its default
    "ngram-cache": _ngrams("ngram-cache"),
    "ngram-simple": _ngrams("ngram-simple"),
    "ngram-simple short": _ngrams("ngram-simple", size_n=3, size_m=8),
    "ngram-map-k": _ngrams("ngram-map-k"),
    "ngram-mod": _ngrams("ngram-mod"),
    "ngram-mod short": _ngrams("ngram-mod", n_match=16, n_min=4),  # 16: llama.cpp warns below
}


def check_peer_name(name: str) -> None:
    """Raise ConfigError for an unknown peer."""
    if name != LLAMA_CPP:
        raise ConfigError(f"peer must be {LLAMA_CPP}, got {name!r}")


class LlamaCppPeer:
    """llama.cpp's programs on our prompts, started anew for each run.

    A server keeps n-grams of earlier answers, which would foresee the next run's answer as a whole.
    """

    def __init__(self, setup: Setup, tokenizer: Tokenizer, folder: Path) -> None:
        self._setup, self._tokenizer, self._log = setup, tokenizer, folder / "llama.cpp.log"
        self._model = setup.converted_model(MODEL_FILE)
        programs = {name: setup.program(LLAMA_CPP, name) for name in (SERVER, LOOKUP)}
        if missing := [name for name, program in programs.items() if program is None]:
            raise ConfigError(f"{LLAMA_CPP} lacks {' and '.join(missing)} in {setup.peers_folder}: {INSTALLING}")
        if not self._model.is_file():
            raise ConfigError(f"{LLAMA_CPP} needs the model in {self._model}: {INSTALLING}")
        self._programs = {name: program for name, program in programs.items() if program is not None}

    @property
    def model_file(self) -> str:
        """Return the name of its model's file."""
        return self._model.name

    def version(self) -> str:
        """Return the version that its server prints."""
        found = re.search(r"version: (.*)", output_of(self._programs[SERVER], "--version") or "")
        return found.group(1) if found else "unknown"

    def commands(self) -> dict[str, str]:
        """Return the command of each mode, without paths, port, prompts and sizes, for reports."""
        return {name: shlex.join([mode.program, *mode.options]) for name, mode in MODES.items()}

    def answer(self, mode: PeerMode, work: Work) -> Run:
        """Answer all prompts greedily and at once; raises RayinferError where that fails."""
        return self._lookup(mode, work) if mode.program == LOOKUP else self._serve(mode, work)

    def _command(self, mode: PeerMode, work: Work, *more: object) -> list[str]:
        longest = max(map(len, work.prompts)) + work.num_tokens + SPARE_TOKENS
        context = -(-longest // CONTEXT_STEP) * CONTEXT_STEP * len(work.prompts)
        options = ("-m", self._model, "-t", len(self._setup.cpus), "-c", context, *mode.options)
        return self._setup.command(self._programs[mode.program], *options, *more)

    def _serve(self, mode: PeerMode, work: Work) -> Run:
        num_streams = len(work.prompts)
        options = ("-np", num_streams, "--no-webui", "--cache-ram", 0, "--host", "127.0.0.1", "--port", "{port}")
        command = self._command(mode, work, *options)
        system = SystemUnderTest(name=LLAMA_CPP, mode="bfloat16", server_command=command)
        with running_server(system, self._log) as server, ThreadPoolExecutor(num_streams) as threads:

            def reply(slot: int, num_tokens: int) -> dict[str, Any]:
                body = {"prompt": list(work.prompts[slot]), "n_predict": num_tokens, "id_slot": slot, **GREEDY}
                return _post(f"{server.base_url}/completion", {**body, "cache_prompt": True, "return_tokens": True})

            # The first token of each prompt, so that prompts are cached.
            list(threads.map(reply, range(num_streams), [1] * num_streams))
            replies = list(threads.map(reply, range(num_streams), [work.num_tokens] * num_streams))
        return server_run(replies, work)

    def _lookup(self, mode: PeerMode, work: Work) -> Run:
        (prompt,) = work.prompts
        text = self._tokenizer.decode(prompt, skip_special_tokens=False)
        options = (*GREEDY_OPTIONS, "-n", work.num_tokens, "--no-escape", "-p", text)
        command = self._command(mode, work, *options)
        try:
            with self._log.open("w") as log:
                process = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=RUN_TIMEOUT_S
                )
        except subprocess.TimeoutExpired:
            raise RayinferError(f"{LOOKUP} took more than {RUN_TIMEOUT_S:.0f} s") from None
        if process.returncode != 0:
            raise RayinferError(f"{LOOKUP} failed: {last_line(self._log)}")
        return lookup_run(self._log.read_text(errors="replace"), work)


def server_run(replies: Sequence[Mapping[str, Any]], work: Work) -> Run:
    """Read the server's own times: those of decoding, from each stream's first token on.

    The rate of several streams is that of all their tokens over the longest of these times.
    """
    for reply, prompt in zip(replies, work.prompts, strict=True):
        _check_prompt(SERVER, reply["tokens_evaluated"], len(prompt))
    timings = [reply["timings"] for reply in replies]
    num_tokens = sum(each["predicted_n"] for each in timings)
    return Run(
        tok_s=_rate(num_tokens - len(replies), max(each["predicted_ms"] for each in timings) / 1e3),
        num_tokens=num_tokens,
        num_drafts=sum(each.get("draft_n", 0) for each in timings),
        num_accepted=sum(each.get("draft_n_accepted", 0) for each in timings),
        answers=[reply["tokens"] for reply in replies],
    )


def lookup_run(output: str, work: Work) -> Run:
    """Read what llama-lookup prints; its time begins after the prompt, whose last step has the first token."""
    prompt = _found(r"encoded +(\d+) tokens", output)
    _check_prompt(LOOKUP, int(prompt), len(work.prompts[0]))
    num_tokens = int(_found(r"decoded +(\d+) tokens", output))
    return Run(
        tok_s=_rate(num_tokens - 1, float(_found(r"decoded +\d+ tokens in +([\d.]+) seconds", output))),
        num_tokens=num_tokens,
        num_drafts=int(_found(r"n_drafted += (\d+)", output)),
        num_accepted=int(_found(r"n_accept += (\d+)", output)),
        answers=None,
    )


def _check_prompt(program: str, found: int, expected: int) -> None:
    if found != expected:
        raise RayinferError(f"{program} read {found} tokens in a prompt of {expected}")


def _rate(num_tokens: int, seconds: float) -> float:
    """Return tokens a second; an answer of a single token has none after its first."""
    if num_tokens < 1 or seconds <= 0:
        raise RayinferError(f"{LLAMA_CPP} ended its answer after one token")
    return num_tokens / seconds


def _found(pattern: str, output: str) -> str:
    found = re.search(pattern, output)
    if found is None:
        raise RayinferError(f"{LOOKUP} printed nothing like {pattern!r}")
    return found.group(1)


def _post(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with DIRECT.open(request, timeout=RUN_TIMEOUT_S) as response:
            reply: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        raise RayinferError(f"{SERVER} refused a prompt: {error.read()[:300].decode(errors='replace')}") from None
    except OSError as error:
        raise RayinferError(f"{SERVER} did not answer: {error}") from None
    return reply
