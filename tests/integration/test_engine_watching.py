"""Engine discovery: by Serve's long poll, and by polling replicas where that brings no addresses."""

import pytest
from ray import serve

from rayinfer_deployments.discovery.addressed_request_router import addressed_routing, watch_engines
from rayinfer_deployments.discovery.engine_address import EngineAddress, subscribe_to_engines
from support.services.service_client import wait_until

ADDRESS = EngineAddress(actor_name="engine-x", namespace="serve", epoch=1)
OPTIONS = {"ray_actor_options": {"num_cpus": 0}, "graceful_shutdown_wait_loop_s": 0.1}


def addressed_replica():
    class Addressed:  # local, so that Ray carries it to processes which do not know this file
        def record_replica_metadata(self):
            return {"engine_actor": "engine-x", "namespace": "serve", "epoch": 1}

    return Addressed


def asking_replica():
    class Asking:
        def __init__(self, handle):
            self.heard = []
            self.watching = watch_engines(handle, self.heard.append)
            self.is_watching = False

        async def tell(self):
            if not self.is_watching:
                self.is_watching = True
                await self.watching.__aenter__()
            return self.heard

    return Asking


def listening_replica():
    class Listening:
        def __init__(self, handle):
            self.heard = []
            handle.options(method_name="anything")  # begins to listen; nothing is ever asked
            subscribe_to_engines(handle.app_name, handle.deployment_name, self.heard.append)

        async def tell(self):
            return self.heard

    return Listening


@pytest.fixture
def hears_of_the_engine(cluster):
    def deploy_and_wait(watcher, **routing):
        engines = serve.deployment(addressed_replica()).options(name="engines", **OPTIONS, **routing)
        application = serve.deployment(watcher).options(name="watcher", **OPTIONS).bind(engines.bind())
        handle = serve.run(application, name="watching", route_prefix=None)
        wait_until(lambda: {"engine-x": ADDRESS} in handle.tell.remote().result())

    yield deploy_and_wait
    serve.delete("watching")


def test_serve_tells_a_process_of_engines_without_being_asked(hears_of_the_engine):
    hears_of_the_engine(listening_replica(), request_router_config=addressed_routing())


def test_where_serve_does_not_tell_the_replicas_are_asked(hears_of_the_engine):
    hears_of_the_engine(asking_replica())
