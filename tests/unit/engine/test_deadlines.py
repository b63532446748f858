from rayinfer.engine.deadlines import Deadlines


def test_a_date_comes_up_once_when_it_has_passed():
    deadlines = Deadlines()
    for request_id, deadline in {"c": 3.0, "a": 1.0, "b": 2.0}.items():
        deadlines.add(request_id, deadline)
    assert deadlines.take_overdue(0.5) == []
    assert deadlines.take_overdue(2.0) == ["a", "b"]
    assert deadlines.take_overdue(2.0) == []
    assert deadlines.take_overdue(9.0) == ["c"]
