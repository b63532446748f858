"""Small programs that behave like llama.cpp's server and its program for lookup decoding."""

from pathlib import Path

from support.fakes.fake_peers import make_program

MODEL = "tiny"
SERVER = """
    import json, sys
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    cached = set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def do_POST(self):
            assert self.path == "/completion"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert body["cache_prompt"] and body["temperature"] == 0 and body["top_k"] == 1
            number, slot = body["n_predict"], body["id_slot"]
            assert (number == 1) == (slot not in cached)  # the prompt is read before it is measured
            cached.add(slot)
            timings = {"predicted_n": number, "predicted_ms": (number - 1) * 10.0 + slot}
            if "--spec-type" in sys.argv:
                timings = {"predicted_n": number, "predicted_ms": (number - 1) * 5.0 + slot}
                timings |= {"draft_n": 8, "draft_n_accepted": 6}
            reply = {"tokens": [7] * number, "tokens_evaluated": len(body["prompt"]) + EXTRA, "timings": timings}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *arguments):
            pass

    if "--version" in sys.argv:
        print("version: 7 (abc)", file=sys.stderr)
        raise SystemExit
    option = lambda name: sys.argv[sys.argv.index(name) + 1]
    assert option("--cache-ram") == "0" and int(option("-c")) % (256 * int(option("-np"))) == 0
    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()
"""
LOOKUP = """
    import sys
    from pathlib import Path
    from rayinfer.tokenization.tokenizer import Tokenizer

    option = lambda name: sys.argv[sys.argv.index(name) + 1]
    assert option("--temp") == "0" and "--no-escape" in sys.argv
    tokens = Tokenizer.from_folder(Path("FOLDER")).encode(option("-p"), add_special_tokens=False)
    number = int(option("-n")) + 1
    print(f"{option('-p')} some answer")
    print(f"encoded {len(tokens):4d} tokens in    0.100 seconds, speed:  100.000 t/s", file=sys.stderr)
    print(f"decoded {number:4d} tokens in {(number - 1) / 500:8.3f} seconds, speed:  500.000 t/s", file=sys.stderr)
    print("n_draft      = 3\\nn_predict    = 9\\nn_drafted    = 20\\nn_accept     = 5", file=sys.stderr)
    raise SystemExit("out of memory" if FAILS else None)
"""


def make_llama_cpp(
    peers_folder: Path, model_folder: Path, *, extra_tokens: int = 0, lookup_fails: bool = False
) -> None:
    """Write both programs and a converted model into a peers' folder.

    The server takes 10 ms a token without drafts and 5 with them, and further streams a millisecond more each;
    it counts `extra_tokens` more in each prompt.
    """
    make_program(peers_folder / "llama.cpp" / "llama-server", SERVER.replace("EXTRA", str(extra_tokens)))
    lookup = LOOKUP.replace("FOLDER", str(model_folder)).replace("FAILS", str(lookup_fails))
    make_program(peers_folder / "llama.cpp" / "llama-lookup", lookup)
    (peers_folder / "models" / MODEL).mkdir(parents=True)
    (peers_folder / "models" / MODEL / "bf16.gguf").touch()
