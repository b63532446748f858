"""Few cases in which every two values of different axes meet; and all cases."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, TypeVar

T = TypeVar("T")
Case = dict[str, Any]


@dataclass(frozen=True)
class Void:
    """A value beside which others mean nothing, such as a batch without rows: in its cases no two of them have met."""

    value: Any


def pairwise(axes: Mapping[str, Sequence[Any]], at_most: int | None = None) -> list[Case]:
    """Cover all pairs greedily, and always in the same way: each case brings together as many new pairs as it can.

    Where any value would do it is the axis's first. ValueError if that takes more than `at_most` cases.
    """
    names = list(axes)
    voids = {(name, i) for name, values in axes.items() for i, value in enumerate(values) if isinstance(value, Void)}
    uncovered = {pair for one, other in combinations(names, 2) for pair in _pairs_of(axes, one, other)}
    cases = []
    while uncovered:
        candidates = _candidates(axes, voids, uncovered)
        places = min(candidates, key=lambda places: -len(uncovered & _pairs(places, voids, names)))
        uncovered -= _pairs(places, voids, names)
        cases.append({name: _bare(axes[name][places[name]]) for name in names})
    if at_most is not None and len(cases) > at_most:
        raise ValueError(f"the pairs of these axes take {len(cases)} cases, more than {at_most}: {', '.join(names)}")
    return cases


def pairwise_choice(cases: Sequence[T], values: Callable[[T], Mapping[str, int]]) -> list[T]:
    """Choose cases greedily until every two values of different axes that meet in any case meet in one of them.

    `values` returns a number for the value of each axis of a case, the same for the same value.
    """
    named = [sorted(values(case).items()) for case in cases]
    pairs = [{*combinations(each, 2), *combinations(each, 1)} for each in named]  # also where there is a single axis
    uncovered, chosen = set[Any]().union(*pairs), []
    while uncovered:
        best = max(range(len(cases)), key=lambda i: len(uncovered & pairs[i]))
        uncovered -= pairs[best]
        chosen.append(best)
    return [cases[i] for i in sorted(chosen)]


def every_case(axes: Mapping[str, Sequence[Any]]) -> Iterator[Case]:
    """The whole product."""
    return (dict(zip(axes, map(_bare, values), strict=True)) for values in product(*axes.values()))


def case_name(case: Case) -> str:
    """A case for pytest's list."""
    return "-".join(f"{name}={value}" for name, value in case.items())


# A pair names two axes and the place of a value in each; a case in the making has a place for every axis.
_Pair = tuple[str, int, str, int]
_Places = dict[str, int]


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, Void) else value


def _pairs_of(axes: Mapping[str, Sequence[Any]], one: str, other: str) -> Iterator[_Pair]:
    return ((one, i, other, j) for i, j in product(range(len(axes[one])), range(len(axes[other]))))


def _pairs(places: _Places, voids: set[tuple[str, int]], names: Sequence[str]) -> set[_Pair]:
    met = {
        (one, places[one], other, places[other])
        for one, other in combinations([name for name in names if name in places], 2)
    }
    ours = voids & places.items()
    return {pair for pair in met if pair[:2] in ours or pair[2:] in ours} if ours else met


def _candidates(
    axes: Mapping[str, Sequence[Any]], voids: set[tuple[str, int]], uncovered: set[_Pair]
) -> Iterator[_Places]:
    """Begin with some of the pairs that are left and add, axis by axis, the value that meets most new ones."""
    names, left = list(axes), sorted(uncovered)
    for one, i, other, j in left[:: max(1, len(left) // 20)]:
        places = {one: i, other: j}
        for name in sorted((name for name in names if name not in (one, other)), key=lambda name: -len(axes[name])):
            places[name] = max(
                range(len(axes[name])),
                key=lambda place, name=name: len(uncovered & _pairs({**places, name: place}, voids, names)),
            )
        yield places
