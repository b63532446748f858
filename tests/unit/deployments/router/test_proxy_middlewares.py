import json
import subprocess
import sys

from ray.serve._private.http_util import validate_http_proxy_callback_return
from ray.serve._private.utils import call_function_from_import_path

from rayinfer.servers.request_bounds import MAX_BODY_BYTES, BoundedRequests
from rayinfer_deployments.cluster.ray_environment import RAY_SETTINGS

IMPORT_PATH = RAY_SETTINGS["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]


def test_serve_finds_the_middleware_where_the_environment_says():
    [middleware] = validate_http_proxy_callback_return(call_function_from_import_path(IMPORT_PATH))
    assert middleware.cls is BoundedRequests
    assert middleware.kwargs["bounds"].max_body_bytes == MAX_BODY_BYTES


def test_a_proxy_starts_without_models_and_their_libraries():
    heavy = ["torch", "transformers", "tokenizers", "ray", "fastapi", "prometheus_client"]
    module = IMPORT_PATH.rpartition(".")[0]
    code = f"import json, sys, {module}; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []
