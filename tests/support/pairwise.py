"""Few cases in which every two values of different axes meet; and all cases."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]


def pairwise(axes: Mapping[str, Sequence[Any]], at_most: int | None = None) -> list[Case]:
    """Cover all pairs greedily, and always in the same way: each case brings together as many new pairs as it can.

    Where any value would do it is the axis's first. ValueError if that takes more than `at_most` cases.
    """
    names = list(axes)
    uncovered = {pair for one, other in combinations(names, 2) for pair in _pairs_of(axes, one, other)}
    cases = []
    while uncovered:
        case = min(_candidates(axes, uncovered), key=lambda case: -len(uncovered & _pairs(case, names)))
        uncovered -= _pairs(case, names)
        cases.append({name: axes[name][case[name]] for name in names})
    if at_most is not None and len(cases) > at_most:
        raise ValueError(f"the pairs of these axes take {len(cases)} cases, more than {at_most}: {', '.join(names)}")
    return cases


def every_case(axes: Mapping[str, Sequence[Any]]) -> Iterator[Case]:
    """The whole product."""
    return (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


def case_name(case: Case) -> str:
    """A case for pytest's list."""
    return "-".join(f"{name}={value}" for name, value in case.items())


# A pair names two axes and the place of a value in each; a case in the making has a place for every axis.
_Pair = tuple[str, int, str, int]
_Places = dict[str, int]


def _pairs_of(axes: Mapping[str, Sequence[Any]], one: str, other: str) -> Iterator[_Pair]:
    return ((one, i, other, j) for i, j in product(range(len(axes[one])), range(len(axes[other]))))


def _pairs(places: _Places, names: Sequence[str]) -> set[_Pair]:
    return {
        (one, places[one], other, places[other])
        for one, other in combinations([name for name in names if name in places], 2)
    }


def _candidates(axes: Mapping[str, Sequence[Any]], uncovered: set[_Pair]) -> Iterator[_Places]:
    """Begin with some of the pairs that are left and add, axis by axis, the value that meets most new ones."""
    names, left = list(axes), sorted(uncovered)
    for one, i, other, j in left[:: max(1, len(left) // 20)]:
        places = {one: i, other: j}
        for name in sorted((name for name in names if name not in (one, other)), key=lambda name: -len(axes[name])):
            places[name] = max(
                range(len(axes[name])),
                key=lambda place, name=name: len(uncovered & _pairs({**places, name: place}, names)),
            )
        yield places
