"""Keys of a service behind Serve's proxy, with an owner in a process of its own."""

import os
import signal

import httpx
import ray

from rayinfer.access.key_file import KeyFile
from rayinfer.access.usage_log import UsageLog, usage_log_path
from rayinfer_deployments.operations.process_listing import read_actors
from rayinfer_deployments.router.access_owner_actor import ACTOR_PREFIX
from support.services.polling import wait_until


def test_keys_apply_within_a_second_and_usage_survives_the_owner(cluster, deploy, tiny_models, tmp_path):
    keys = KeyFile(tmp_path / "api-keys.jsonl")
    secret, other = keys.create("alice"), keys.create("bob")
    models = [{"name": "tiny", "model": str(tiny_models["tiny"]), "num_kv_blocks": 256}]
    with (
        deploy("keys", models, api_keys=str(keys.path)),
        httpx.Client(base_url=f"{cluster}/keys", timeout=60, trust_env=False) as http,
    ):

        def ask(key: str) -> int:
            body = {"prompt": "Once", "max_tokens": 4, "ignore_eos": True}
            return http.post("/v1/completions", json=body, headers={"x-api-key": key}).status_code

        assert [http.get(path).status_code for path in ("/ready", "/v1/models", "/metrics")] == [200, 401, 401]
        assert [ask(key) for key in (secret, other, "ri-wrong")] == [200, 200, 401]
        log = UsageLog(usage_log_path(keys.path))
        wait_until(lambda: sum(row.usage.output_tokens for row in log.rows()) == 8, timeout_s=5)
        address = ray.get_runtime_context().gcs_address
        (owner,) = [actor for actor in read_actors(address) if actor.name == ACTOR_PREFIX + "keys"]
        os.kill(owner.pid, signal.SIGKILL)
        assert [ask(key) for key in (secret, other)] == [200, 200]  # with the last known keys
        keys.revoke("bob")
        wait_until(lambda: ask(other) == 401, timeout_s=10)
        assert ask(secret) == 200
        wait_until(lambda: sum(row.usage.output_tokens for row in log.rows()) >= 20, timeout_s=5)
