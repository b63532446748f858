from itertools import combinations, product

import pytest

from support.kernels.pairwise import Void, case_name, every_case, pairwise, pairwise_choice

AXES = {"a": [1, 2, 3, 4], "b": "xyz", "c": [True, False], "d": [0.5, None, 7, 8, 9]}


def test_every_two_values_meet_in_few_cases():
    cases = pairwise(AXES)
    for one, other in combinations(AXES, 2):
        assert {(case[one], case[other]) for case in cases} == set(product(AXES[one], AXES[other]))
    assert 20 <= len(cases) <= 24  # of 120; the two longest axes alone need 20


def test_a_pair_that_meets_where_there_is_nothing_has_not_met():
    axes = {"rows": [2, Void(0), 1], **AXES}
    cases = pairwise(axes)
    full = [case for case in cases if case["rows"]]
    for one, other in combinations(AXES, 2):
        assert {(case[one], case[other]) for case in full} == set(product(AXES[one], AXES[other]))
    assert {case["d"] for case in cases if case["rows"] == 0} == set(AXES["d"])
    assert len(cases) <= len(pairwise(AXES)) + len(AXES["d"])
    assert {case["rows"] for case in every_case(axes)} == {2, 0, 1}


def test_axes_whose_pairs_take_too_many_cases_are_refused():
    with pytest.raises(ValueError, match="take 12 cases, more than 11: one, other"):
        pairwise({"one": range(3), "other": range(4)}, at_most=11)
    assert len(pairwise({"one": range(3), "other": range(4)}, at_most=12)) == 12


def test_where_any_value_would_do_it_is_the_first():
    cases = pairwise({"long": range(6), "other": range(6), "short": ["first", "second"]})
    assert len(cases) == 36
    assert sum(case["short"] == "second" for case in cases) == 6


def test_the_cases_are_always_the_same_and_none_comes_twice():
    assert pairwise(AXES) == pairwise(AXES)
    names = [case_name(case) for case in pairwise(AXES)]
    assert len(set(names)) == len(names)


def test_the_whole_product_has_every_case():
    cases = list(every_case(AXES))
    assert len(cases) == 4 * 3 * 2 * 5
    assert cases[0] == {"a": 1, "b": "x", "c": True, "d": 0.5}


def test_every_two_values_that_meet_in_a_case_meet_in_a_chosen_one():
    cases = [case for case in every_case(AXES) if case["c"] or case["d"] is None]  # no product of axes
    chosen = pairwise_choice(cases, lambda case: {name: AXES[name].index(value) for name, value in case.items()})
    for one, other in combinations(AXES, 2):
        assert {(case[one], case[other]) for case in chosen} == {(case[one], case[other]) for case in cases}
    assert len(chosen) <= 28  # of 72
    assert chosen == [case for case in cases if case in chosen]


def test_cases_of_one_axis_are_all_chosen():
    assert pairwise_choice([3, 1, 2], lambda case: {"axis": case}) == [3, 1, 2]
