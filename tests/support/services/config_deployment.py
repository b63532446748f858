"""A Ray with Serve that runs a file for `serve deploy`, with a small model in the place of its own, until stdin ends.

Run it as a program: `config_deployment.py FILE MODEL PORT`, in the environment that `rayinfer environment` prints. It
prints "ready" once the service is. What it does to the file is what Ray's dashboard does when `serve deploy` sends it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from rayinfer_deployments.cluster.managed_cluster import ManagedCluster
from rayinfer_deployments.operations.service_startup import wait_until_ready

NUM_CPUS = 0.1  # of each engine, for a machine with two cores
APPLICATION = "rayinfer"


def with_small_models(config: dict[str, Any], model: str, port: int) -> dict[str, Any]:
    """Put the model and the port in the place of the file's."""
    config["http_options"]["port"] = port
    for application in config["applications"]:
        for number, each in enumerate(application["args"]["models"]):
            small = {"name": f"tiny-{number}", "model": model, "num_cpus": NUM_CPUS, "num_threads": 1}
            each.update(small | {"num_kv_blocks": 256})
            if "autoscaling" in each:
                each["autoscaling"]["min_replicas"] = 1
    return config


def main() -> None:
    """Serve until stdin ends."""
    file, model, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    config = with_small_models(yaml.safe_load(Path(file).read_text()), model, port)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever others print is no answer
    with ManagedCluster():
        schema = ServeDeploySchema.model_validate(config)
        serve.start(proxy_location=schema.proxy_location, http_options=schema.http_options.model_dump())
        _get_global_client().deploy_apps(schema)
        wait_until_ready(APPLICATION, "127.0.0.1", port, check=lambda: None, on_progress=lambda reason: None)
        print(json.dumps("ready"), file=answers)
        sys.stdin.read()


if __name__ == "__main__":
    main()
