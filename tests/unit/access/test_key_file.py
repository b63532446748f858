import json
import threading

import pytest

from rayinfer.access.api_key import KeyLimits, Scope, digest_of, environment_keys, parse_key
from rayinfer.access.key_file import KeyFile
from rayinfer.access.key_table import KeyTable
from rayinfer.errors import ConfigError


def test_a_key_is_found_by_its_secret_which_is_stored_nowhere(key_file):
    secret = key_file.create("alice", weight=3, scopes=[Scope.INFER, Scope.METRICS], limits=KeyLimits(max_tokens=5))
    assert (secret[:3], len(secret)) == ("ri-", 3 + 43)  # 256 bits in base64
    assert secret[3:] not in key_file.path.read_text()
    assert key_file.path.stat().st_mode & 0o777 == 0o600
    assert key_file.path.parent.stat().st_mode & 0o777 == 0o700

    key = KeyTable(key_file.read()).find(secret)
    assert (key.name, key.tenant, key.weight, key.limits.max_tokens) == ("alice", "alice", 3, 5)
    assert (key.scopes, key.digest) == ({Scope.INFER, Scope.METRICS}, digest_of(secret))


def test_wrong_cases_prefixes_and_revoked_keys_are_not_found(key_file):
    secret = key_file.create("alice")
    table = KeyTable(key_file.read())
    for wrong in (secret.swapcase(), secret[:-1], secret + "x", secret[3:], "", "ri-", "\udcff"):
        assert table.find(wrong) is None
    assert key_file.revoke("alice").revoked_s is not None
    assert KeyTable(key_file.read()).find(secret) is None
    with pytest.raises(ConfigError, match="no key 'alice'"):
        key_file.revoke("alice")


def test_names_are_unique_until_they_are_revoked(key_file):
    key_file.create("alice")
    with pytest.raises(ConfigError, match="'alice' exists"):
        key_file.create("alice")
    key_file.revoke("alice")
    key_file.create("alice")
    assert [key.name for key in key_file.read()] == ["alice", "alice"]


def test_concurrent_changes_lose_no_key(key_file):
    def create(number):
        for each in range(5):
            KeyFile(key_file.path).create(f"key-{number}-{each}")

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(key_file.read()) == 20
    assert [path.name for path in key_file.path.parent.iterdir() if path.suffix not in (".jsonl", ".lock")] == []


LINE = {"key_id": "a", "name": "a", "sha256": "0" * 64, "tenant": "a"}


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "{}",
        '{"key_id": "a", "name": "a", "sha256": "00", "tenant": "a"}',
        json.dumps(LINE | {"name": "a b"}),
        json.dumps(LINE | {"name": "a\n"}),
        json.dumps(LINE | {"scopes": ["root"]}),
        json.dumps(LINE | {"limits": {"max_tokens": 0}}),
        json.dumps(LINE | {"limits": {"rpm": 1}}),
        json.dumps(
            {
                "key_id": "a",
                "name": "a",
                "sha256": "0" * 64,
                "tenant": "a",
                "limits": {"most_urgent": 2, "least_urgent": 1},
            }
        ),
    ],
)
def test_a_wrong_line_is_named(key_file, line):
    key_file.create("alice")
    with key_file.path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match="line 2"):
        key_file.read()


def test_two_keys_of_one_secret_are_refused(key_file):
    key_file.create("alice")
    other = parse_key(key_file.path.read_text().strip()).model_copy(update={"key_id": "other"})
    with key_file.path.open("a") as file:
        file.write(other.line() + "\n")
    with pytest.raises(ConfigError, match="same sha256"):
        key_file.read()


def test_keys_of_the_environment_may_have_names():
    keys = environment_keys(["alice=" + "x" * 20, "sk-0123456789abcdef", "padded-0123456789abcdef="])
    assert [key.name for key in keys] == ["alice", "environment-2", "environment-3"]
    assert KeyTable(keys).find("x" * 20) is keys[0]
    assert KeyTable(keys).find("padded-0123456789abcdef=") is keys[2]
    with pytest.raises(ConfigError, match="key 1 must have 16 to 512"):
        environment_keys(["short"])
    with pytest.raises(ConfigError, match="got twice: a"):
        environment_keys(["a=" + "x" * 20, "a=" + "y" * 20])
