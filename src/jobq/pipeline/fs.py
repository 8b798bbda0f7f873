"""Files on any file system that Spark supports (local, HDFS, S3, …), through Hadoop's API."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import SparkSession


class File(NamedTuple):
    """A file: its full path, and its size in bytes."""

    path: str
    size: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]


class Files:
    """The file operations of a lake. Hidden files (`_x`, `.x`) are not listed."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()

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
            if not any(part.startswith(("_", ".")) for part in whole[len(root) + 1 :].split("/")):
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
        """Write a small text file atomically: write a temporary file and rename it."""
        fs, temporary = self._fs(path), self._path(path + ".tmp")
        stream = fs.create(temporary, True)
        try:
            stream.write(bytearray(text, "utf-8"))
            stream.hsync()
        finally:
            stream.close()
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
