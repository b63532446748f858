import json
import subprocess
import sys

from ray.serve._private.http_util import validate_http_proxy_callback_return
from ray.serve._private.utils import call_function_from_import_path
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.testclient import TestClient

from rayinfer.servers.request_bounds import MAX_BODY_BYTES, BoundedRequests
from rayinfer_deployments.cluster.ray_environment import RAY_SETTINGS
from rayinfer_deployments.router.proxy_middlewares import AnsweredRequests, proxy_middlewares

IMPORT_PATH = RAY_SETTINGS["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]


def test_serve_finds_the_middleware_where_the_environment_says():
    bounded, answered = validate_http_proxy_callback_return(call_function_from_import_path(IMPORT_PATH))
    assert bounded.cls is BoundedRequests
    assert bounded.kwargs["bounds"].max_body_bytes == MAX_BODY_BYTES
    assert answered.cls is AnsweredRequests


def test_a_request_whose_router_died_before_its_answer_is_refused_for_a_moment():
    async def silent(scope, receive, send):
        """Return without an answer, as Serve's proxy does when a replica dies."""

    answer = TestClient(Starlette(routes=[Mount("/", silent)], middleware=proxy_middlewares())).post("/v1/completions")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "service_unavailable_error"


def test_answers_pass_the_proxy_as_they_are():
    app = Starlette(routes=[Mount("/", PlainTextResponse("as it is", 418))], middleware=proxy_middlewares())
    answer = TestClient(app).get("/v1/models")
    assert (answer.status_code, answer.text) == (418, "as it is")


def test_a_proxy_starts_without_models_and_their_libraries():
    heavy = ["torch", "transformers", "tokenizers", "ray", "fastapi", "prometheus_client"]
    module = IMPORT_PATH.rpartition(".")[0]
    code = f"import json, sys, {module}; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []
