import pytest

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.control.canary import canary_lines, changed_canary

RUNNING = {"model": "new", "share": 0.2, "by": "tenant"}


def change(canaries, new=None, *, promote=False, rollback=False, **changes):
    changed = changed_canary(canaries, "m", new, changes, promote=promote, rollback=rollback)
    return changed, canaries.get("m")


def test_settings_of_a_canary_are_started_changed_promoted_and_removed():
    assert change({}, "new") == (True, {"model": "new", "share": 0.1})
    assert change({"m": dict(RUNNING)}, share=0.5) == (True, RUNNING | {"share": 0.5})
    assert change({"m": dict(RUNNING)}, "third") == (True, {"model": "third", "share": 0.1})
    assert change({"m": dict(RUNNING)}, promote=True) == (True, RUNNING | {"share": 1.0})
    assert change({"m": dict(RUNNING)}, rollback=True) == (True, None)
    assert change({"m": dict(RUNNING)}) == (False, RUNNING)


@pytest.mark.parametrize(
    "wish", [{"rollback": True}, {"promote": True}, {"share": 0.3}, {"promote": True, "rollback": True}]
)
def test_what_has_no_canary_is_not_changed(wish):
    with pytest.raises(ConfigError):
        change({}, **wish)


def test_equal_states_of_routers_are_shown_once():
    state = {"model": "m", "canary": "new", "share": 0.2, "problem": ""}
    rolled_back = state | {"share": 0.0, "problem": "it fails"}
    assert canary_lines([{"canaries": [state]}, {"canaries": [state]}]) == ["m -> new: 20% of its requests"]
    assert canary_lines([{"canaries": [rolled_back]}]) == ["m -> new: no requests (it fails)"]
    assert canary_lines([{}]) == ["no canary"]
