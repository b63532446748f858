import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from rayinfer_deployments.operations.service_startup import wait_until_ready

ANSWERS = iter([(503, b'{"ready": false}'), (503, b'{"ready": false, "reasons": {"m": "loading"}}'), (200, b"{}")])


class Starting(BaseHTTPRequestHandler):
    """A service with keys that becomes ready with the third question."""

    def do_GET(self):
        """Answer."""
        status, body = next(ANSWERS)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Stay silent."""


def test_progress_is_shown_though_a_service_with_keys_gives_no_reasons():
    seen = []
    with HTTPServer(("127.0.0.1", 0), Starting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        wait_until_ready("app", "127.0.0.1", server.server_address[1], lambda: None, seen.append)
        server.shutdown()
    assert seen == ["not ready", "m: loading"]
