"""The used parts of pyarrow, which has no types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class DataType(Protocol):
    pass


class Field(Protocol):
    name: str
    type: DataType


class Schema(Protocol):
    names: list[str]

    def __iter__(self) -> Iterator[Field]: ...


class Array(Protocol):
    def cast(self, target_type: DataType) -> Array: ...


class RecordBatch(Protocol):
    """Rows, stored by column."""

    num_rows: int
    nbytes: int
    schema: Schema

    def column(self, name: str) -> Array: ...

    def slice(self, offset: int, length: int | None = None) -> RecordBatch: ...

    def to_pylist(self) -> list[dict[str, object]]: ...
