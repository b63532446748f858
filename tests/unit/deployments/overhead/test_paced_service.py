from rayinfer.access.key_file import KeyFile
from rayinfer.access.key_table import KeyTable
from rayinfer_deployments.overhead.paced_service import write_keys


def test_the_clients_key_is_the_last_of_many_and_has_every_limit_set(tmp_path):
    secret = write_keys(tmp_path / "keys.jsonl", 20)
    keys = KeyFile(tmp_path / "keys.jsonl").read()
    assert len(keys) == 20
    assert KeyTable(keys).find(secret) is keys[-1]
    limits = keys[-1].limits.model_dump(include={"requests_per_minute", "tokens_per_minute", "concurrent_requests"})
    assert None not in limits.values()
    assert keys[-1].limits.allows_model("paced")
    assert keys[0].limits.requests_per_minute is None
