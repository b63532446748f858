"""Engine discovery: by Serve's long poll, and by polling replicas where that brings no addresses."""

import pytest
from ray import serve

from rayinfer_deployments.discovery.addressed_request_router import addressed_routing, watch_engines
from rayinfer_deployments.discovery.engine_address import EngineAddress, subscribe_to_engines
from support.services.polling import wait_until

ADDRESS = EngineAddress(actor_name="engine-x", namespace="serve")
OPTIONS = {"ray_actor_options": {"num_cpus": 0}, "graceful_shutdown_wait_loop_s": 0.1}


def addressed_replica():
    class Addressed:  # local, so that Ray carries it to processes which do not know this file
        def record_replica_metadata(self):
            return {"engine_actor": "engine-x", "namespace": "serve"}

    return Addressed


def polling_replica():
    class Polling:
        def __init__(self, handle):
            self.received = []
            self.watching = watch_engines(handle, self.received.append)
            self.is_watching = False

        async def seen(self):
            if not self.is_watching:
                self.is_watching = True
                await self.watching.__aenter__()
            return self.received

    return Polling


def listening_replica():
    class Listening:
        def __init__(self, handle):
            self.received = []
            handle.options(method_name="anything")  # begins to listen; nothing is ever asked
            subscribe_to_engines(handle.app_name, handle.deployment_name, self.received.append)

        async def seen(self):
            return self.received

    return Listening


@pytest.fixture
def watcher_sees_the_engine(cluster):
    def deploy_and_wait(watcher, **routing):
        engines = serve.deployment(addressed_replica()).options(name="engines", **OPTIONS, **routing)
        application = serve.deployment(watcher).options(name="watcher", **OPTIONS).bind(engines.bind())
        handle = serve.run(application, name="watching", route_prefix=None)
        wait_until(lambda: {"engine-x": ADDRESS} in handle.seen.remote().result())
        return handle.seen.remote().result()

    yield deploy_and_wait
    serve.delete("watching")


def test_serve_pushes_engine_changes_to_a_subscriber(watcher_sees_the_engine):
    seen = watcher_sees_the_engine(listening_replica(), request_router_config=addressed_routing())
    assert {"engine-x": ADDRESS} in seen


def test_without_pushed_changes_replicas_are_polled(watcher_sees_the_engine):
    assert {"engine-x": ADDRESS} in watcher_sees_the_engine(polling_replica())
