import gc
import logging

import pytest

from rayinfer_deployments.router.routed_models import find_missing_files
from rayinfer_deployments.router.router import collect_garbage_rarely, log_to_serve


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


@pytest.fixture
def thresholds():
    """The collector's thresholds, as they were before."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_thousands_of_requests_bring_no_full_garbage_collection(thresholds):
    collect_garbage_rarely()
    num_walked, (_, middle, full) = num_tracked_objects(), num_collections()
    requests = [[number] for number in range(200_000)]
    assert num_walked < 1000 < len(requests)
    _, middle_now, full_now = num_collections()
    assert middle_now - middle > 20
    assert full_now == full


def num_collections() -> list[int]:
    return [generation["collections"] for generation in gc.get_stats()]


def num_tracked_objects() -> int:
    return len(gc.get_objects())


def test_a_deleted_folder_is_named_without_its_path(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert find_missing_files(tmp_path / "m") == ""
    (tmp_path / "m" / "config.json").unlink()
    assert find_missing_files(tmp_path / "m") == "its folder 'm' has been deleted"
