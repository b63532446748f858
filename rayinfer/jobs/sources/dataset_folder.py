"""Data sets in folders: what `save_to_disk` of Hugging Face's datasets writes, and downloads from its hub."""

import json
from typing import Any, NamedTuple

from rayinfer.jobs.interfaces import SourceError
from rayinfer.jobs.sources.input_files import InputFile, find_input_files, read_small_file

_STATE = "state.json"


class DatasetFolder(NamedTuple):
    """Files of a data set's split, all Arrow or all Parquet."""

    files: list[InputFile]
    is_arrow: bool


def find_dataset(location: str, split: str | None) -> DatasetFolder | None:
    """Return the files of a split; None if the folder holds neither Arrow nor Parquet files."""
    splits = _read_json(f"{location}/dataset_dict.json")
    if splits is not None:
        return _saved_dataset(f"{location}/{_one_of(location, splits['splits'], split)}")
    if _read_json(f"{location}/{_STATE}") is not None:
        return _saved_dataset(location)
    for ending, is_arrow in ((".parquet", False), (".arrow", True)):
        try:
            files = find_input_files(location, (ending,))
        except SourceError:
            continue
        return DatasetFolder(_files_of_split(location, files, split), is_arrow)
    return None


def _saved_dataset(folder: str) -> DatasetFolder:
    state = _read_json(f"{folder}/{_STATE}")
    if state is None:
        raise SourceError(f"{folder}: has no {_STATE}, so the data set was not saved to its end")
    if state.get("_indices_data_files"):
        raise SourceError(f"{folder}: holds a selection of rows; save it again after flatten_indices()")
    files = [find_input_files(f"{folder}/{file['filename']}")[0] for file in state["_data_files"]]
    return DatasetFolder(files, True)


def _files_of_split(location: str, files: list[InputFile], split: str | None) -> list[InputFile]:
    """Take a split's files; the hub calls them train-00000-of-00002.parquet, or puts them in a folder of that name."""
    splits = sorted({_split_of(file) for file in files} - {None})  # type: ignore[type-var]
    if split is None and len(splits) < 2:
        return files
    chosen = _one_of(location, [name for name in splits if name is not None], split)
    return [file for file in files if _split_of(file) == chosen]


def _split_of(file: InputFile) -> str | None:
    parent, _, name = file.name.rpartition("/")
    stem = name.rpartition(".")[0]
    prefix, _, rest = stem.partition("-")
    if rest and rest.partition("-of-")[0][:5].isdigit():
        return prefix
    last = parent.rpartition("/")[2]
    return last if last in ("train", "test", "validation") else None


def _one_of(location: str, splits: list[str], split: str | None) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split not in splits:
        asked = "choose one" if split is None else f"{split} is none of them"
        raise SourceError(f"{location}: has the splits {', '.join(splits) or '(none)'}; {asked}")
    return split


def _read_json(location: str) -> dict[str, Any] | None:
    content = read_small_file(location)
    if content is None:
        return None
    try:
        found: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise SourceError(f"{location}: no JSON: {error}") from None
    return found
