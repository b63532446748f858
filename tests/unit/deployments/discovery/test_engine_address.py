from rayinfer_deployments.discovery.engine_address import EngineAddress, publish_engines, subscribe_to_engines

ADDRESS = EngineAddress(actor_name="engine-a", namespace="serve")


def test_an_address_survives_the_way_through_a_replicas_metadata():
    assert EngineAddress.from_metadata(ADDRESS.to_metadata()) == ADDRESS


def test_a_replica_without_metadata_has_no_engine():
    assert EngineAddress.from_metadata({}) is None


def test_a_subscriber_gets_the_present_engines_and_every_change():
    publish_engines("app-1", "engines", {"engine-a": ADDRESS})
    received = []
    unsubscribe = subscribe_to_engines("app-1", "engines", received.append)
    publish_engines("app-1", "engines", {})
    publish_engines("app-2", "engines", {"engine-a": ADDRESS})
    unsubscribe()
    publish_engines("app-1", "engines", {"engine-a": ADDRESS})
    assert received == [{"engine-a": ADDRESS}, {}]
