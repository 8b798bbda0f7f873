"""Files of a lake on any file system that Spark supports (local, HDFS, S3, …).

A classic session reaches them through Hadoop's API in its JVM (`HadoopFiles`), with the settings
and credentials of Spark. A session of Spark Connect has no JVM, so its client reaches them through
Arrow (`ArrowFiles`): local paths that it shares with the server, and object stores whose
credentials are in its environment.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Protocol

from pyarrow import fs as arrow
from pyspark.sql import SparkSession

_PUT_IS_ATOMIC = ("s3a:", "s3:", "s3n:", "gs:")
"""Object stores. An object appears as a whole when it is closed, and a rename would copy it."""


class File(NamedTuple):
    """A file: its full path, and its size in bytes."""

    path: str
    size: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]


class Files(Protocol):
    """The file operations of a lake. Hidden files (`_x`, `.x`) are not listed."""

    def absolute(self, path: str) -> str:
        """The path from the root. A local path has no scheme."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""
        ...

    def children(self, path: str) -> list[str]:
        """The names of a folder's entries, or none if the folder does not exist."""
        ...

    def files(self, path: str) -> list[File]:
        """All files below a folder, except hidden ones and those in hidden folders."""
        ...

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder. Creates parent folders and replaces an existing target."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file or a whole folder, if it exists."""
        ...

    def read(self, path: str) -> str | None:
        """Read a small text file. Returns None if it does not exist."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write a small text file atomically."""
        ...


def open_files(spark: SparkSession) -> Files:
    """The files that a session can reach."""
    return ArrowFiles() if is_connect(spark) else HadoopFiles(spark)


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, which has no JVM of its own."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_local(path: str) -> bool:
    """Whether a path without a scheme, or with the scheme `file`, is meant."""
    return "://" not in path or path.startswith("file:")


def _hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/"))


class HadoopFiles:
    """Files through Hadoop's API, in the JVM of a classic session."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

    def absolute(self, path: str) -> str:
        """See Files. A path without a scheme belongs to Hadoop's default file system."""
        whole = str(self._fs(path).makeQualified(self._path(path)).toString())
        return "/" + whole.removeprefix("file:").lstrip("/") if whole.startswith("file:") else whole

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _fs(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._conf)

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""
        return bool(self._fs(path).exists(self._path(path)))

    def children(self, path: str) -> list[str]:
        """The names of a folder's entries, or none if the folder does not exist."""
        if not self.exists(path):
            return []
        names = (
            status.getPath().getName() for status in self._fs(path).listStatus(self._path(path))
        )
        return sorted(name for name in names if not name.startswith(("_", ".")))

    def files(self, path: str) -> list[File]:
        """All files below a folder, except hidden ones and those in hidden folders."""
        if not self.exists(path):
            return []
        root = self._fs(path).getFileStatus(self._path(path)).getPath().toString()
        found, todo = [], self._fs(path).listFiles(self._path(path), True)
        while todo.hasNext():
            status = todo.next()
            whole = status.getPath().toString()
            if not _hidden(whole[len(root) + 1 :]):
                found.append(File(whole, int(status.getLen())))
        return sorted(found)

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder. Creates parent folders and replaces an existing target."""
        fs = self._fs(target)
        parent = self._path(target).getParent()
        if not fs.exists(parent):
            fs.mkdirs(parent)
        if fs.exists(self._path(target)):
            fs.delete(self._path(target), True)
        if not fs.rename(self._path(source), self._path(target)):
            raise OSError(f"could not rename {source} to {target}")

    def delete(self, path: str) -> None:
        """Delete a file or a whole folder, if it exists."""
        self._fs(path).delete(self._path(path), True)

    def read(self, path: str) -> str | None:
        """Read a small text file. Returns None if it does not exist."""
        if not self.exists(path):
            return None
        stream = self._fs(path).open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """See Files. Except in an object store, a temporary file is written and renamed."""
        fs = self._fs(path)
        direct = path.startswith(_PUT_IS_ATOMIC)
        temporary = self._path(path if direct else path + ".tmp")
        stream = fs.create(temporary, True)
        try:
            stream.write(bytearray(text, "utf-8"))
            if not direct:
                stream.hsync()
        finally:
            stream.close()
        if direct:
            return
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._path(path).toUri(), self._conf
        )
        overwrite = self._jvm.org.apache.hadoop.fs.Options.Rename.OVERWRITE
        context.rename(temporary, self._path(path), _array(self._jvm, overwrite))


def _array(jvm: Any, option: Any) -> Any:
    """A Java array with one rename option, because py4j cannot call variadic methods directly."""
    array = jvm.java.lang.reflect.Array.newInstance(option.getClass(), 1)
    array[0] = option
    return array


class ArrowFiles:
    """Files through Arrow, without a JVM."""

    def _at(self, path: str) -> tuple[Any, str]:
        if is_local(path):
            return arrow.LocalFileSystem(), "/" + path.removeprefix("file:").lstrip("/")
        found: tuple[Any, str] = arrow.FileSystem.from_uri(path.replace("s3a://", "s3://", 1))
        return found

    def absolute(self, path: str) -> str:
        """See Files."""
        if not is_local(path):
            return path
        return os.path.abspath(path) if not path.startswith("file:") else self._at(path)[1]

    def exists(self, path: str) -> bool:
        """See Files."""
        fs, place = self._at(path)
        return bool(fs.get_file_info(place).type != arrow.FileType.NotFound)

    def _listed(self, path: str, *, deep: bool) -> tuple[str, list[Any]]:
        fs, place = self._at(path)
        selector = arrow.FileSelector(place, allow_not_found=True, recursive=deep)
        return place.rstrip("/"), fs.get_file_info(selector)

    def children(self, path: str) -> list[str]:
        """See Files."""
        _, found = self._listed(path, deep=False)
        return sorted(info.base_name for info in found if not _hidden(info.base_name))

    def files(self, path: str) -> list[File]:
        """See Files. Of an object store, paths are without the scheme, so they are put back."""
        place, found = self._listed(path, deep=True)
        return sorted(
            File(path.rstrip("/") + info.path[len(place) :], info.size)
            for info in found
            if info.type == arrow.FileType.File and not _hidden(info.path[len(place) + 1 :])
        )

    def move(self, source: str, target: str) -> None:
        """See Files."""
        fs, place = self._at(target)
        fs.create_dir(place.rsplit("/", 1)[0], recursive=True)
        self.delete(target)
        fs.move(self._at(source)[1], place)

    def delete(self, path: str) -> None:
        """See Files."""
        fs, place = self._at(path)
        kind = fs.get_file_info(place).type
        if kind == arrow.FileType.Directory:
            fs.delete_dir(place)
        elif kind == arrow.FileType.File:
            fs.delete_file(place)

    def read(self, path: str) -> str | None:
        """See Files."""
        fs, place = self._at(path)
        try:
            with fs.open_input_stream(place) as stream:
                return str(stream.read().decode())
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        """See Files. On a local disk, a temporary file is written, synced and renamed."""
        fs, place = self._at(path)
        if not is_local(path):
            with fs.open_output_stream(place) as stream:
                stream.write(text.encode())
            return
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(f"{place}.tmp", "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{place}.tmp", place)
