"""Builds seccomp filters: a program that the kernel runs before each system call.

The program compares the number of the call and the low 32 bits of its arguments. It cannot follow
pointers, so it knows neither paths nor addresses.
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

from jobq.executors.sandbox.syscalls import LAST_KNOWN, MACHINE, call, number

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_KILL = 0x80000000

# Offsets in struct seccomp_data.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SET_FILTER = 1
_WORD = 0xFFFFFFFF


class Check(NamedTuple):
    """A condition for a call: whether the masked argument has one of the values."""

    argument: int
    values: tuple[int, ...]
    mask: int = _WORD
    wanted: bool = True


_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


class Filter:
    """A filter in the making. It allows every known call that it has no rule for."""

    def __init__(self) -> None:
        self._program: list[_Instruction] = [
            (_LOAD, 0, 0, _ARCHITECTURE),
            # Another architecture, e.g. a 32-bit call on x86_64, has other numbers.
            (_IF_EQUAL, 1, 0, _ARCHITECTURES[MACHINE]),
            (_RETURN, 0, 0, _KILL),
            (_LOAD, 0, 0, _NUMBER),
        ]

    def refuse_unknown(self, error: int) -> None:
        """Refuse calls that are newer than this code."""
        self._program += [(_IF_GREATER, 0, 1, LAST_KNOWN), (_RETURN, 0, 0, _ERROR | error)]

    def refuse(self, name: str, error: int) -> None:
        """Refuse a call with an error number."""
        self.restrict(name, error, Check(0, (), wanted=True))

    def restrict(self, name: str, error: int, *checks: Check) -> None:
        """Refuse a call unless all checks pass."""
        called = number(name)
        if called is None:
            return
        body: list[_Instruction] = []
        for check in checks:
            body += _compare(check, error)
        body.append((_RETURN, 0, 0, _ALLOW))
        self._program += [(_IF_EQUAL, 0, len(body), called), *body]

    def install(self) -> None:
        """Put the filter in force for this thread and all that it starts from now on."""
        program = [*self._program, (_RETURN, 0, 0, _ALLOW)]
        code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
        buffer = ctypes.create_string_buffer(code, len(code))
        header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
        call("seccomp", _SET_FILTER, 0, ctypes.create_string_buffer(header, len(header)))


def _compare(check: Check, error: int) -> list[_Instruction]:
    """Instructions that return the error if the check fails, and go on otherwise."""
    if not check.values:  # no value passes
        return [(_RETURN, 0, 0, _ERROR | error)]
    code: list[_Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * check.argument)]
    if check.mask != _WORD:
        code.append((_AND, 0, 0, check.mask))
    for place, value in enumerate(check.values):
        left = len(check.values) - place - 1
        if check.wanted:  # equal: jump over the comparisons that are left and the error
            code.append((_IF_EQUAL, left + 1, 0, value & _WORD))
        else:  # equal: jump to the error, which follows the comparisons; last one: jump over it
            code.append((_IF_EQUAL, left, 1 if left == 0 else 0, value & _WORD))
    code.append((_RETURN, 0, 0, _ERROR | error))
    return code
