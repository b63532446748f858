"""Each path of the application with no key, a wrong one and one without its scope."""

import re

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from rayinfer.access.api_key import Scope
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.access.open_paths import is_open, scope_of
from rayinfer.servers.access.web_origins import OriginPolicy
from rayinfer.servers.app import build_app
from tests.unit.servers.access.conftest import BODY

OPEN = {"/health", "/health/", "/ping", "/ping/", "/ready", "/ready/", "/v2/health/live", "/v2/health/ready"}
OPEN_TO_READ = {(method, path) for method in ("GET", "HEAD") for path in ("/", "/docs", "/ui/some-id")}
BROWSER = {"Accept": "text/html,*/*;q=0.8"}
ORIGIN = "https://page.example"
PREFLIGHT = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}


def walked(routes: list[BaseRoute]) -> list[tuple[str, str]]:
    """List every method and path, with something in place of parameters."""
    found = []
    for route in routes:
        assert isinstance(route, Route | APIRoute), f"{route} is of a kind that this test does not walk"
        path = re.sub(r"\{[^}]*\}", "some-id", route.path)
        found += [(method, path) for method in sorted(route.methods)]
    return found


def is_opened(method: str, path: str) -> bool:
    return path in OPEN or (method, path) in OPEN_TO_READ


async def test_every_path_but_the_open_ones_needs_a_key(guarded):
    assert guarded.access.authenticator.keys is None
    walk = walked(guarded.app.routes)
    assert len(walk) > 40
    async with guarded.client() as anonymous:
        for method, path in walk:  # the keys are not known yet
            answer = await anonymous.request(method, path)
            assert (answer.status_code == 503) == (not is_opened(method, path)), (method, path)
    await guarded.key("alice")
    async with guarded.client() as anonymous, guarded.client("ri-wrong") as stranger:
        for method, path in walk:
            for client in (anonymous, stranger):
                answer = await client.request(method, path)
                if is_opened(method, path):
                    assert answer.status_code == (404 if path == "/ui/some-id" else 200), (method, path)
                else:
                    assert answer.status_code in (401, 429), (method, path)
                    assert method == "HEAD" or answer.json().keys() & {"error", "message"}


async def test_paths_that_are_not_there_are_closed_too(guarded):
    await guarded.key("alice")
    async with guarded.client() as anonymous:
        for path in (
            "/nothing",
            "http://service//health",
            "/health//",
            "/health/%2e%2e/metrics",
            "/metrics/%2e%2e/health",
            "/HEALTH",
        ):
            for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "TRACE"):
                assert (await anonymous.request(method, path)).status_code == 401, (method, path)
        # Starlette's `request.url` is made of the Host header: the path of the request counts.
        for host in ("x/health?", "x/health#", "service/health"):
            assert (await anonymous.get("/v1/models", headers={"Host": host})).status_code == 401
        for method in ("POST", "PUT", "DELETE", "TRACE", "OPTIONS"):
            assert (await anonymous.request(method, "/")).status_code == 401, method
        assert (await anonymous.get("/v2/health/live")).status_code == 200


@pytest.mark.parametrize("has_cors", [False, True])
async def test_no_route_answers_a_preflight_and_only_cors_does_without_a_key(guarded, models, metrics, has_cors):
    app = build_app(
        models, metrics, access=guarded.access, origins=OriginPolicy(cors_origins=[ORIGIN] if has_cors else [])
    )
    guarded.app, secret = app, await guarded.key("alice")
    reached = []

    @app.middleware("http")  # inside all others
    async def note(request, proceed):
        reached.append(request.url.path)
        return await proceed(request)

    app.user_middleware.append(app.user_middleware.pop(0))
    paths = [*sorted({path for _, path in walked(app.routes)}), "/nothing", "*"]
    async with guarded.client() as anonymous, guarded.client(secret) as alice:
        for path in paths:
            answer = await anonymous.options(path, headers=PREFLIGHT)
            assert answer.status_code == (200 if has_cors else 401), path
            assert "org/tiny" not in answer.text
            other = await anonymous.options(path, headers=PREFLIGHT | {"Origin": "https://other.example"})
            assert other.status_code == (400 if has_cors else 401), path
            assert (await anonymous.options(path)).status_code == 401, path
        assert reached == []
        assert (await alice.options("/v1/models")).status_code == 405


async def test_what_is_open_names_no_models_but_to_keys_that_may_use_them(guarded, generator):
    generator.not_ready = "its engine is loading"
    secret, other = await guarded.key("alice"), await guarded.key("bob", models=("other",))
    paths = [("GET", path) for path in sorted(OPEN)] + sorted(OPEN_TO_READ)
    for client in (guarded.client(), guarded.client("ri-wrong"), guarded.client(other)):
        async with client:
            for method, path in paths:
                for headers in ({}, BROWSER):
                    answer = await client.request(method, path, headers=headers)
                    assert answer.status_code in ((404,) if path == "/ui/some-id" else (200, 503)), path
                    assert "tiny" not in answer.text, path
                    assert "loading" not in answer.text, path
    async with guarded.client() as anonymous, guarded.client(secret) as alice:
        assert (await anonymous.get("/ready")).json() == {"ready": False}
        assert (await anonymous.get("/")).status_code == 503
        assert (await alice.get("/ready")).json()["reasons"] == {"org/tiny": "its engine is loading"}
        assert "org/tiny" in (await alice.get("/v2/health/ready")).text
        generator.not_ready = None
        assert [(await anonymous.get(path)).status_code for path in ("/", "/ready", "/v2/health/ready")] == [200] * 3


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/metrics", Scope.METRICS),
        ("/metrics/", Scope.METRICS),
        ("/metrics/load", Scope.METRICS),
        ("/pause", Scope.OPERATE),
        ("/v2/repository/models/m/load", Scope.OPERATE),
        ("/operations/scale", Scope.OPERATE),
        ("/v1/requests", Scope.INFER),
        ("/live", Scope.INFER),
        ("/v2/repository/index", Scope.INFER),
        ("/v1/models", Scope.INFER),
        ("/openapi.json", Scope.INFER),
        ("/no/such/path", Scope.INFER),
    ],
)
def test_paths_need_their_scopes(path, scope):
    assert (scope_of(path), is_open("GET", path)) == (scope, False)


async def test_a_key_opens_what_its_scopes_say(guarded):
    secrets = {scope: await guarded.key(scope.value, scope) for scope in Scope}
    opened = {}
    for scope, secret in secrets.items():
        async with guarded.client(secret) as client:
            answers = [await client.get("/v1/models"), await client.get("/metrics"), await client.post("/pause")]
            opened[scope] = [answer.status_code for answer in answers]
    assert opened == {Scope.INFER: [200, 403, 403], Scope.METRICS: [403, 200, 403], Scope.OPERATE: [403, 403, 400]}


async def test_the_load_is_open_where_the_service_says_so(guarded):
    await guarded.key("alice")
    app = build_app({}, ServiceMetrics(), access=guarded.access, opens_load=True)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as anonymous:
        answers = [await anonymous.get(path) for path in ("/metrics/load", "/metrics/load/", "/metrics", "/v1/models")]
        assert [answer.status_code for answer in answers] == [200, 200, 401, 401]
        assert (await anonymous.post("/metrics/load")).status_code == 401


async def test_every_route_of_operators_needs_the_scope_operate(guarded):
    secret = await guarded.key("alice", Scope.INFER, Scope.METRICS)
    async with guarded.client(secret) as client:
        for route in guarded.app.routes:
            if "engine_control" in getattr(route.endpoint, "__module__", ""):
                for method in route.methods:
                    assert (await client.request(method, route.path)).status_code == 403, route.path


async def test_errors_have_the_form_of_their_protocol(guarded):
    secret = await guarded.key("alice")
    async with guarded.client() as anonymous, guarded.client(secret) as alice:
        answer = await anonymous.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        error = answer.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "missing_api_key", None)
        answer = await anonymous.get("/v2/models/tiny", headers={"x-api-key": "wrong"})
        assert (answer.status_code, answer.json()) == (401, {"error": "The API key is not valid."})
        answer = await alice.get("/metrics")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
        assert secret not in answer.text


async def test_an_address_that_guesses_gets_429_with_the_time_to_wait(guarded):
    secret = await guarded.key("alice")
    async with guarded.client("ri-wrong") as stranger, guarded.client(secret) as alice:
        statuses = [(await stranger.get("/v1/models")).status_code for _ in range(21)]
        assert statuses == [401] * 20 + [429]
        answer = await stranger.get("/v1/models")
        assert 1 <= int(answer.headers["Retry-After"]) <= 60
        assert (await alice.get("/v1/models")).status_code == 200


async def test_open_paths_and_scopes_hold_below_a_prefix(guarded):
    secret = await guarded.key("alice")
    transport = httpx.ASGITransport(guarded.app, root_path="/prefix")
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        key = {"x-api-key": secret}
        for path, status in (("/prefix/health", 200), ("/prefix/v1/models", 200), ("/prefix/metrics", 403)):
            assert (await client.get(path, headers=key)).status_code == status
        for path, status in (("/prefix/health", 200), ("/prefix/v1/models", 401), ("/prefixed/health", 401)):
            assert (await client.get(path)).status_code == status
