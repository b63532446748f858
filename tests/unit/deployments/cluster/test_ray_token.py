import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from rayinfer_deployments.cluster.ray_token import default_token_path, ensure_private_token, exposed_token_paths

WITH_TOKEN = {"RAY_AUTH_MODE": "token"}


@pytest.fixture
def permissive_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path):
    return path.stat().st_mode & 0o777


def test_a_new_token_is_readable_by_its_user_only(tmp_path, permissive_umask):
    ensure_private_token(WITH_TOKEN, tmp_path)
    path = default_token_path(tmp_path)
    assert (mode_of(path.parent), mode_of(path)) == (0o700, 0o600)
    assert len(bytes.fromhex(path.read_text())) == 32
    assert list(path.parent.iterdir()) == [path]


def test_a_token_that_ray_wrote_keeps_its_content_and_becomes_private(tmp_path):
    path = default_token_path(tmp_path)
    path.parent.mkdir(mode=0o755)
    path.write_text("secret")
    path.chmod(0o644)
    assert exposed_token_paths({}, tmp_path) == {path.parent: 0o700, path: 0o600}
    ensure_private_token(WITH_TOKEN, tmp_path)
    assert path.read_text() == "secret"
    assert (mode_of(path.parent), mode_of(path)) == (0o700, 0o600)
    assert exposed_token_paths({}, tmp_path) == {}


def test_services_that_start_at_once_share_one_token(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ensure_private_token(WITH_TOKEN, tmp_path), range(32)))
    assert len(default_token_path(tmp_path).read_text()) == 64


@pytest.mark.parametrize(
    "environment", [{}, WITH_TOKEN | {"RAY_AUTH_TOKEN": "x"}, WITH_TOKEN | {"RAY_AUTH_TOKEN_PATH": "x"}]
)
def test_no_token_is_drawn_where_ray_uses_another_one_or_none(tmp_path, environment):
    ensure_private_token(environment, tmp_path)
    assert not default_token_path(tmp_path).exists()


def test_a_named_token_file_is_reported_without_its_folder(tmp_path):
    named = tmp_path / "token"
    named.write_text("secret")
    named.chmod(0o640)
    assert exposed_token_paths({"RAY_AUTH_TOKEN_PATH": str(named)}, tmp_path) == {named: 0o600}


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path, caplog):
    (tmp_path / ".ray").write_text("a file")
    with caplog.at_level(logging.WARNING):
        ensure_private_token(WITH_TOKEN, tmp_path)
    assert "cannot be kept from other users" in caplog.text
