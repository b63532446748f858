import pytest

from support.architecture import floors as house
from support.architecture import rules as rules
from support.architecture.sources import Source, find_sources


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return find_sources()


def test_every_module_stands_on_exactly_one_floor(sources):
    assert rules.misplaced_modules(sources) == []


def test_imports_only_go_down(sources):
    assert rules.upward_imports(sources) == []


def test_ray_is_imported_only_where_it_belongs(sources):
    assert rules.stray_ray_imports(sources) == []


def test_kernels_are_imported_by_their_front(sources):
    assert rules.kernel_internals(sources) == []


def test_every_neighbor_that_is_allowed_is_used_and_only_one_way(sources):
    used = rules.used_neighbors(sources)
    assert set(house.NEIGHBORS) <= used
    assert not [pair for pair in house.NEIGHBORS if pair[::-1] in used]
