"""The directory of a run: on this machine, or at any URI that Spark's file systems read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from py4j.protocol import Py4JJavaError

from chaos.history import SUFFIX
from chaos.pipeline.spark import brief
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

PARQUET = ".parquet"
_GLOB = "[]{}*?\\"


class PlaceError(OperatingError):
    """The directory of a run lacks a file, or cannot be read or written."""


class File(NamedTuple):
    """A file of a history."""

    name: str
    """To be shown."""
    url: str
    """For Spark; its special characters are escaped."""
    size: int

    @property
    def is_lines(self) -> bool:
        return self.name.endswith(SUFFIX)


class Place(Protocol):
    """The directory of a run. Every method raises PlaceError."""

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, content: bytes) -> None: ...

    def history(self) -> Sequence[File]:
        """Return the files of the history in the order of their names."""
        ...

    def logs(self) -> Sequence[tuple[str, bytes]]:
        """Return name and content of the logs of the nodes."""
        ...


def escaped(path: str) -> str:
    """Return a path in which no character is special for Hadoop."""
    return "".join("{\\,}" if char == "," else "\\" + char if char in _GLOB else char for char in path)


class LocalPlace:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __str__(self) -> str:
        return str(self.directory)

    def read(self, name: str) -> bytes:
        file = self.directory / name
        try:
            return file.read_bytes()
        except OSError as error:
            raise PlaceError(f"{file}: {error.strerror}") from None

    def write(self, name: str, content: bytes) -> None:
        file = self.directory / name
        try:
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        except OSError as error:
            raise PlaceError(f"{file}: {error.strerror}") from None

    def history(self) -> Sequence[File]:
        if not self.directory.is_dir():
            raise PlaceError(f"{self.directory}: no such directory")
        directory = self.directory / "history"
        found = sorted([*directory.glob(f"*{SUFFIX}"), *directory.glob(f"*{PARQUET}")])
        for file in found:
            if file.suffix == SUFFIX and file.stat().st_size and not _ends_with_a_line(file):
                number, line = _last_line(file)
                raise PlaceError(f"{file}:{number}: cut in the middle: {shown(line)}")
        return [
            File(str(file), f"file://{escaped(str(file.resolve()))}", file.stat().st_size) for file in found
        ]

    def logs(self) -> Sequence[tuple[str, bytes]]:
        return [(file.stem, file.read_bytes()) for file in sorted((self.directory / "logs").glob("*.log"))]


def _ends_with_a_line(file: Path) -> bool:
    with file.open("rb") as content:
        content.seek(-1, 2)
        return content.read() == b"\n"


def _last_line(file: Path) -> tuple[int, str]:
    number, line = 0, b""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):  # noqa: B007 (the last ones are what is wanted)
            pass
    return number, line.decode("utf-8", "replace")


class RemotePlace:
    """A directory that is read and written by Spark's Java process: in an object store, HDFS, or local."""

    def __init__(self, uri: str, spark: SparkSession) -> None:
        self._uri = uri.rstrip("/")
        context: Any = spark.sparkContext
        self._java: Any = context._jvm  # noqa: SLF001 -- PySpark has no other way to Hadoop's file systems
        self._settings: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001

    def __str__(self) -> str:
        return self._uri

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._uri}/{name}")

    def read(self, name: str) -> bytes:
        path = self._path(name)
        try:
            content = path.getFileSystem(self._settings).open(path)
            try:
                return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(content))
            finally:
                content.close()
        except Py4JJavaError as error:
            raise PlaceError(f"{self._uri}/{name}: {brief(error)}") from None

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        try:
            file = path.getFileSystem(self._settings).create(path, True)
            try:
                file.write(bytearray(content))
            finally:
                file.close()
        except Py4JJavaError as error:
            raise PlaceError(f"{self._uri}/{name}: {brief(error)}") from None

    def _listed(self, name: str) -> list[tuple[str, int]]:
        path = self._path(name)
        try:
            system = path.getFileSystem(self._settings)
            if not system.exists(path):
                return []
            return sorted((str(status.getPath()), status.getLen()) for status in system.listStatus(path))
        except Py4JJavaError as error:
            raise PlaceError(f"{self._uri}/{name}: {brief(error)}") from None

    def history(self) -> Sequence[File]:
        return [
            File(url, escaped(url), size)
            for url, size in self._listed("history")
            if url.endswith((SUFFIX, PARQUET))
        ]

    def logs(self) -> Sequence[tuple[str, bytes]]:
        names = [url.rpartition("/")[2] for url, _ in self._listed("logs")]
        return [
            (name.removesuffix(".log"), self.read(f"logs/{name}")) for name in names if name.endswith(".log")
        ]


SHOWN = 100
"""Characters shown of a line."""


def shown(line: str) -> str:
    line = line.strip()
    return line if len(line) <= SHOWN else line[:SHOWN] + "…"
