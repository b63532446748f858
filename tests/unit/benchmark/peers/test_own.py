from fake_peers import make_setup
from rayinfer.benchmark.peers.contender import Contender, Missing
from rayinfer.benchmark.peers.own import own_contenders


def test_our_engine_and_our_server_get_the_same_settings(tmp_path):
    (contender,) = own_contenders(make_setup(tmp_path), ("bfloat16",))
    assert isinstance(contender, Contender)
    assert contender.label == "rayinfer bfloat16"
    arguments = contender.server.arguments
    assert arguments[arguments.index("--num-threads") + 1] == "1"
    assert "--no-enable-prefix-caching" in arguments


def test_a_mode_that_does_not_exist_is_missing(tmp_path):
    (found,) = own_contenders(make_setup(tmp_path), ("float13",))
    assert isinstance(found, Missing)
    assert "choose from bfloat16, int8" in found.reason
