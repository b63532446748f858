import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from rayinfer.errors import ConfigError, ModelNotFound
from rayinfer_deployments.operations.service_startup import ServiceFailed, start_error, wait_until_ready

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


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("rayinfer.errors.ConfigError: block_size must be at least 1", ConfigError, "block_size must be at least 1"),
        ("rayinfer.errors.ModelNotFound: no folder m", ModelNotFound, "no folder m"),
        ("rayinfer.errors.EngineDead: the engine could not start", ServiceFailed, "the engine could not start"),
        ("MemoryError: out of memory", ServiceFailed, "out of memory"),
        ("MemoryError", ServiceFailed, "replica"),
    ],
)
def test_a_failed_start_has_the_type_of_its_cause_where_that_explains_it(line, kind, message):
    message_of_serve = f"Deploying failed.\nTraceback:\nRuntimeError: replica\n{line}\n"
    error = start_error(ApplicationStatusOverview(ApplicationStatus.DEPLOY_FAILED, message_of_serve, 0.0, {}))
    assert (type(error), str(error)) == (kind, message)
