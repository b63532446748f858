"""Deployment of a Serve configuration, from a program on a node: what Ray's dashboard does for `serve deploy`."""

import json
import sys
from pathlib import Path

import ray
import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema


def main() -> None:
    """Deploy the file that the command line names, and return while Serve starts it."""
    schema = ServeDeploySchema.model_validate(yaml.safe_load(Path(sys.argv[1]).read_text()))
    ray.init(namespace="serve", log_to_driver=False)
    grpc = {"grpc_options": schema.grpc_options.model_dump()} if schema.grpc_options.port else {}
    serve.start(proxy_location=schema.proxy_location, http_options=schema.http_options.model_dump(), **grpc)
    _get_global_client().deploy_apps(schema)
    print(json.dumps("deployed"))


if __name__ == "__main__":
    main()
