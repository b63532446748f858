from hypothesis import given
from hypothesis import strategies as st

from rayinfer.routing.canary.split import is_in_share


def test_a_share_of_the_keys_falls_to_the_canary():
    for share in (0.0, 0.05, 0.2, 0.5, 1.0):
        taken = sum(is_in_share("m", f"request-{number}", share) for number in range(5000))
        assert abs(taken / 5000 - share) < 0.02


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_keeps_the_keys_of_a_smaller_one(key, first, second):
    smaller, larger = sorted((first, second))
    assert is_in_share("m", key, larger) or not is_in_share("m", key, smaller)


def test_models_split_their_keys_differently():
    keys = [f"tenant-{number}" for number in range(200)]
    assert [is_in_share("a", key, 0.5) for key in keys] != [is_in_share("b", key, 0.5) for key in keys]
