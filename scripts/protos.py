"""Generate the Python code of proto/jobq/v1 into src/jobq/rpc/v1.

    python scripts/protos.py            generate
    python scripts/protos.py --check    fail if the code is not what the .proto files say, or if
                                        they break clients of the last release
    python scripts/protos.py --release  record the .proto files as those of a release

`proto/released.binpb` describes the messages and services of the last release. What it contains
stays as it is: a field keeps its number, name and type. A field that is removed leaves its number
and its name `reserved`. New fields, messages and methods are welcome.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

PROTO = Path("proto")
CODE = Path("src/jobq/rpc/v1")
RELEASED = PROTO / "released.binpb"

_IMPORTS = re.compile(r"\bjobq\.v1\b(?= import|\.\w+_pb2)|(?<=from )jobq\.v1\b")
"""The generated code imports jobq.v1; the package is jobq.rpc.v1."""
_SERVERS_PART = re.compile(r"\n+class \w+Servicer\b")
"""Where the part for servers begins. jq-server has one wrapper for all its calls instead
(server/handlers.py), so only the stubs for clients are kept."""
_NOT_STUBS = {"__init__.py"}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"], ["--release"]):
        print(__doc__)
        return 2
    if arguments == ["--release"]:
        RELEASED.write_bytes(described(sorted(PROTO.rglob("*.proto"))).SerializeToString())
        return 0
    generated = generate(sorted(PROTO.rglob("*.proto")))
    if not arguments:
        _write(generated)
        return 0
    problems = list(_out_of_step(generated))
    if RELEASED.exists():
        released = FileDescriptorSet.FromString(RELEASED.read_bytes())
        problems += breaks(released, described(sorted(PROTO.rglob("*.proto"))))
    for problem in problems:
        print(problem)
    print(f"protos: {len(problems)} problems" if problems else "protos: ok")
    return 1 if problems else 0


# ── generating ────────────────────────────────────────────────────────────────────────────────────


def generate(protos: list[Path]) -> dict[str, str]:
    """The generated files by name."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = ("python_out=", "grpc_python_out=", "mypy_out=quiet:", "mypy_grpc_out=quiet:")
        _protoc(*(f"--{output}{folder}" for output in outputs), *map(str, protos))
        return {
            path.name: _IMPORTS.sub(
                "jobq.rpc.v1", _SERVERS_PART.split(path.read_text())[0].rstrip()
            )
            + "\n"
            for path in sorted(Path(folder).rglob("*.py*"))
            if not path.name.startswith("common_pb2_grpc")  # it has no service
        }


def described(protos: list[Path]) -> FileDescriptorSet:
    """The messages and services of some .proto files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "set.binpb")
        _protoc(f"--descriptor_set_out={path}", *map(str, protos))
        return FileDescriptorSet.FromString(path.read_bytes())


def _protoc(*arguments: str) -> None:
    plugins = Path(sys.executable).parent  # mypy-protobuf installs its plugins there
    known = resources.files("grpc_tools") / "_proto"
    failed = protoc.main(
        [
            "protoc",
            f"-I{PROTO}",
            f"-I{known}",
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            *arguments,
        ]
    )
    if failed:
        raise SystemExit(f"protoc failed with {failed}: see its message above")


def _write(generated: dict[str, str]) -> None:
    CODE.mkdir(parents=True, exist_ok=True)
    for old in _stubs() - set(generated):
        (CODE / old).unlink()
    for name, text in generated.items():
        (CODE / name).write_text(text)


def _stubs() -> set[str]:
    return {path.name for path in CODE.glob("*.py*")} - _NOT_STUBS


def _out_of_step(generated: dict[str, str]) -> Iterator[str]:
    for name in sorted(_stubs() | set(generated)):
        path = CODE / name
        if name not in generated:
            yield f"{path}: no .proto file generates it"
        elif not path.exists() or path.read_text() != generated[name]:
            yield f"{path}: not what proto/ says; run scripts/protos.py"


# ── compatibility ─────────────────────────────────────────────────────────────────────────────────


def breaks(released: FileDescriptorSet, current: FileDescriptorSet) -> list[str]:
    """What the current files break for a program that was built with the released ones."""
    problems: list[str] = []
    messages = dict(_messages(current))
    for name, message in _messages(released):
        if name not in messages:
            problems.append(f"message {name} is gone")
        else:
            problems += _broken_fields(name, message, messages[name])
    enums = dict(_enums(current))
    for name, enum in _enums(released):
        kept = {value.name: value.number for value in enums[name].value} if name in enums else {}
        problems += [
            f"{name}.{value.name} is gone, or has another number"
            for value in enum.value
            if kept.get(value.name) != value.number
        ]
    services = dict(_services(current))
    for name, service in _services(released):
        if name not in services:
            problems.append(f"service {name} is gone")
        else:
            problems += _broken_methods(name, service, services[name])
    return problems


def _messages(files: FileDescriptorSet) -> Iterator[tuple[str, DescriptorProto]]:
    def below(prefix: str, message: DescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
        name = f"{prefix}.{message.name}"
        yield name, message
        for nested in message.nested_type:
            yield from below(name, nested)

    for file in files.file:
        for message in file.message_type:
            yield from below(file.package, message)


def _enums(files: FileDescriptorSet) -> Iterator[tuple[str, EnumDescriptorProto]]:
    for file in files.file:
        for enum in file.enum_type:
            yield f"{file.package}.{enum.name}", enum
    for name, message in _messages(files):
        for enum in message.enum_type:
            yield f"{name}.{enum.name}", enum


def _services(files: FileDescriptorSet) -> Iterator[tuple[str, ServiceDescriptorProto]]:
    for file in files.file:
        for service in file.service:
            yield f"{file.package}.{service.name}", service


def _broken_fields(name: str, released: DescriptorProto, current: DescriptorProto) -> Iterator[str]:
    by_number = {field.number: field for field in current.field}
    numbers = {n for gap in current.reserved_range for n in range(gap.start, gap.end)}
    for field in released.field:
        kept = by_number.get(field.number)
        where = f"{name}.{field.name} = {field.number}"
        if kept is None:
            if field.number not in numbers or field.name not in current.reserved_name:
                yield f"{where} was removed: reserve its number and its name"
        elif kept.name != field.name:
            yield f"{where} is {kept.name} now: give the new field a number of its own"
        elif _shape(kept, current) != _shape(field, released):
            yield f"{where} has another type, label or oneof"
    taken = {n for gap in released.reserved_range for n in range(gap.start, gap.end)}
    for field in current.field:
        if field.number in taken or field.name in released.reserved_name:
            yield f"{name}.{field.name} = {field.number} was reserved in the last release"


def _shape(field: FieldDescriptorProto, message: DescriptorProto) -> tuple[object, ...]:
    union = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
    return field.type, field.label, field.type_name, field.proto3_optional, union


def _broken_methods(
    name: str, released: ServiceDescriptorProto, current: ServiceDescriptorProto
) -> Iterator[str]:
    methods = {method.name: method for method in current.method}
    for method in released.method:
        kept = methods.get(method.name)
        if kept is None:
            yield f"{name}.{method.name} is gone"
        elif (
            kept.input_type,
            kept.output_type,
            kept.client_streaming,
            kept.server_streaming,
        ) != (
            method.input_type,
            method.output_type,
            method.client_streaming,
            method.server_streaming,
        ):
            yield f"{name}.{method.name} takes or returns something else"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
