import pytest

from support.architecture import rules as rules
from support.architecture import rules_of_tests
from support.architecture.floors import MAX_FILE_LINES
from support.architecture.sources import PACKAGES, ROOT, Source, find_sources


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return find_sources()


@pytest.fixture(scope="module")
def tests() -> list[Source]:
    return find_sources({"tests": ROOT / "tests"})


def test_files_and_functions_can_be_read_at_once(sources):
    assert rules.oversized(sources) == []


def test_native_sources_can_be_read_at_once():
    native = [
        path for folder in PACKAGES.values() for ending in ("cpp", "h", "cu") for path in folder.rglob(f"*.{ending}")
    ]
    assert [path.name for path in native if len(path.read_text().splitlines()) > MAX_FILE_LINES] == []


def test_imports_stand_at_the_top_of_their_file(sources):
    assert rules.late_imports(sources) == []


def test_only_the_settings_read_the_environment(sources):
    assert rules.environment_uses(sources) == []


def test_file_names_say_what_is_in_them(sources):
    assert rules.empty_names(sources) == []


def test_docstrings_of_modules_and_classes_begin_with_a_noun():
    folders = {name: ROOT / name for name in ("rayinfer", "deployments", "kernels", "tests")}
    assert rules.question_docstrings(find_sources(folders)) == []


def test_names_and_docstrings_use_the_words_of_the_glossary():
    folders = {name: ROOT / name for name in ("rayinfer", "deployments", "kernels", "tests")}
    assert rules.retired_words(find_sources(folders)) == []


def test_no_folder_is_crowded(sources):
    assert rules.crowded_folders(sources) == []


def test_tests_replace_no_part_of_our_code(tests):
    assert rules_of_tests.patched_code(tests) == []


def test_tests_use_no_private_name(tests, sources):
    assert rules_of_tests.private_uses(tests, sources) == []


def test_workshop_folders_are_not_packages():
    # `kernels` is the name of a published package: a folder of that name with an __init__.py would stand in its place.
    marked = [
        folder / "__init__.py" for folder in (ROOT / "kernels", ROOT / "kernels" / "benchmarks", ROOT / "deployments")
    ]
    assert [path for path in [*marked, *(ROOT / "tests").rglob("__init__.py")] if path.exists()] == []
