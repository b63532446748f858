"""Output in the shape of OpenAI's batch files: a line for each row with the response of its endpoint, or an error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from rayinfer.jobs.interfaces import Row
from rayinfer.jobs.providers import RowOutput

CREATED = 0  # times are not written: the same job has the same bytes whenever it runs
ID_COLUMN = "custom_id"
ROW_FAILED = "row_failed"


@dataclass(frozen=True, slots=True)
class BatchLineRecords:
    """RecordMaker of lines as OpenAI's Batches API returns them; `model` is named in responses."""

    model: str

    @property
    def id_column(self) -> str:
        """Column with the rows' ids."""
        return ID_COLUMN

    def __call__(self, row: Row, output: RowOutput, output_columns: tuple[str, ...]) -> dict[str, Any]:
        """Return a row's line; its ids follow from the row's."""
        name = xxhash.xxh3_128_hexdigest(f"{row.index}:{row.id}".encode("utf-8", "surrogatepass"))
        head = {"id": f"batch_req_{name}", ID_COLUMN: row.id}
        if output.error is not None:
            return {**head, "response": None, "error": {"code": ROW_FAILED, "message": output.error}}
        response = {"status_code": 200, "request_id": name, "body": self._body(name, row, output.columns)}
        return {**head, "response": response, "error": None}

    def _body(self, name: str, row: Row, columns: Mapping[str, Any]) -> dict[str, Any]:
        tail = {"model": self.model, "usage": columns.get("usage")}
        if "embedding" in columns:
            return {"object": "list", "data": _vectors(columns["embedding"]), **tail}
        if "text" not in columns:
            return {"object": "list", "data": [{"index": 0, **_numbers(columns)}], **tail}
        is_chat = "messages" in row.data["body"]
        texts, reasons = _as_list(columns["text"]), _as_list(columns["finish_reason"])
        choices = [
            {"index": index, **_content(text, is_chat=is_chat), "logprobs": None, "finish_reason": reason}
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        kind, prefix = ("chat.completion", "chatcmpl") if is_chat else ("text_completion", "cmpl")
        return {"id": f"{prefix}-{name}", "object": kind, "created": CREATED, "choices": choices, **tail}


def _content(text: str, *, is_chat: bool) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}


def _vectors(embedding: list[Any]) -> list[dict[str, Any]]:
    """Return the objects of one vector, or of one for each input of a row."""
    vectors = embedding if embedding and isinstance(embedding[0], list) else [embedding]
    return [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]


def _numbers(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if name != "usage"}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
