from rayinfer_deployments.discovery.scaling_decisions import KEPT, ScalingDecision, ScalingDecisions


class MemoryTable:
    """Table in memory that may be away."""

    def __init__(self):
        self.values = {}
        self.is_away = False

    def put(self, key, value):
        """Write a value."""
        if self.is_away:
            raise ConnectionError("the table does not answer")
        self.values[key] = value

    def delete(self, key):
        """Remove a value."""
        self.values.pop(key, None)

    def read(self, prefix):
        """Read values by prefix."""
        return {key: value for key, value in self.values.items() if key.startswith(prefix)}


def decision(time_s, before=1, after=2):
    return ScalingDecision(time_s=time_s, before=before, after=after, reason="the queue is long")


def test_the_latest_decisions_are_kept_in_order():
    decisions = ScalingDecisions(MemoryTable())
    for number in range(KEPT + 5):
        decisions.record("app", "engine-0", decision(100.0 * number))
    found = decisions.read("app", "engine-0")
    assert [each.time_s for each in found] == [100.0 * number for number in range(5, KEPT + 5)]
    assert found[0].reason == "the queue is long"
    assert decisions.read("app", "engine") == []


def test_a_decision_that_is_asked_for_again_counts_once():
    decisions = ScalingDecisions(MemoryTable())
    for time_s in (1.0, 1.1, 2.0, 20.0):
        decisions.record("app", "engine-0", decision(time_s))
    assert [each.time_s for each in decisions.read("app", "engine-0")] == [1.0, 20.0]


def test_a_table_that_is_away_stops_nothing():
    table = MemoryTable()
    table.is_away = True
    decisions = ScalingDecisions(table)
    decisions.record("app", "engine-0", decision(1.0))
    assert decisions.read("app", "engine-0") == []
