import logging

import pytest

from rayinfer_deployments.router.router import log_to_serve


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture
def serve_log():
    """Serve's logger as a service sets it up."""
    logger, library, kept = logging.getLogger("ray.serve"), logging.getLogger("rayinfer"), Kept()
    before = (logger.level, logger.propagate, library.parent)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(kept)
    yield kept
    logger.removeHandler(kept)
    logger.setLevel(before[0])
    _, logger.propagate, library.parent = before


def test_records_of_the_library_are_in_serves_log(serve_log):
    log_to_serve()
    logging.getLogger("rayinfer.servers.app").error("a request failed")
    logging.getLogger("rayinfer.routing.dispatch").info("nothing of importance")
    assert serve_log.messages == ["a request failed"]
