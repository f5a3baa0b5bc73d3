"""A script reaches neither the user's key rings nor the calls of the kernel that namespaces do not divide."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import struct
import sys
from pathlib import Path

import pytest

from evaluator import Sandbox
from evaluator.processes import seccomp
from evaluator.processes.sandboxes import system_folders
from evaluator.processes.scripts import run_script
from tests.sandboxes import require_bubblewrap

SECRET = "not-a-real-key-9876543210"
CALLS = sorted(seccomp._BLOCKED["x86_64"])
PROCESSORS = ["x86_64", "aarch64"]

# Puts a key into the session's key ring and, with another argument, tries to find it there.
KEYS = """
import ctypes, sys
call, number = ctypes.CDLL(None, use_errno=True).syscall, int(sys.argv[1])
name, value = b"evaluator-test", sys.argv[2].encode()
def find():
    key = call(number, 10, -3, b"user", name, 0)
    text = ctypes.create_string_buffer(100)
    if key < 0:
        return key
    size = call(number, 11, key, text, 100)
    return text.raw[:size]
"""
PUT = """
import asyncio
from pathlib import Path
from evaluator.processes.sandboxes import Sandbox
from evaluator.processes.scripts import run_script
assert call(number, 1, None) > 0 and call(int(sys.argv[3]), b"user", name, value, len(value), -3) > 0
print(find())
for kind in sys.argv[4:]:
    ended = asyncio.run(run_script([sys.executable, "-I", "-c", sys.stdin.read(), sys.argv[1], ""], timeout_s=100,
                                   cwd=Path("/usr"), sandbox=Sandbox(kind)))
    print(ended.stdout.strip() or ended.stderr)
"""


@pytest.mark.parametrize("kind", ["none", "bubblewrap"])
def test_the_keys_of_the_session_are_not_found_by_a_script(kind: str) -> None:
    numbers = seccomp._BLOCKED.get(seccomp.machine() or "")
    if numbers is None or ctypes.CDLL(None).syscall(numbers["keyctl"], 0, -3, 1) == -1:
        pytest.skip("this kernel has no key rings, or forbids them")
    if kind == "bubblewrap":
        require_bubblewrap()
    argv = [sys.executable, "-c", KEYS + PUT, str(numbers["keyctl"]), SECRET]
    ended = asyncio.run(
        run_script(
            [*argv, str(numbers["add_key"]), kind],
            stdin=KEYS + "print(find())",
            timeout_s=100,
            cwd=Path.cwd(),
        )
    )
    found, by_script = ended.stdout.splitlines()
    assert SECRET in found  # the control
    assert by_script == "-1"


TRY = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number in json.loads(sys.argv[1]).items():
    ctypes.set_errno(0)
    libc.syscall(number, -1, None, -1, 0, 0)
    found[name] = ctypes.get_errno()
print(json.dumps(found))
"""


def test_calls_that_namespaces_do_not_divide_fail_in_bubblewrap(tmp_path: Path) -> None:
    processor = seccomp.machine()
    if processor is None:
        pytest.skip("no filter is known for this processor")
    numbers = json.dumps(seccomp._BLOCKED[processor])

    def errors(sandbox: Sandbox) -> dict[str, int]:
        argv = [sys.executable, "-I", "-c", TRY, numbers]
        ended = asyncio.run(run_script(argv, timeout_s=100, cwd=tmp_path, sandbox=sandbox))
        return json.loads(ended.stdout)

    assert errors(require_bubblewrap()) == dict.fromkeys(CALLS, errno.EPERM)
    assert errors(Sandbox())["keyctl"] != errno.EPERM  # the control


def decide(program: bytes, arch: int, number: int) -> int:
    """What the kernel returns for a call: the value of a return instruction."""
    data = struct.pack("=II", number, arch)
    at, value = 0, 0
    for _ in range(100):
        code, if_so, if_not, operand = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code in (0x15, 0x35):
            holds = value == operand if code == 0x15 else value >= operand
            at += if_so if holds else if_not
        else:
            assert code == 0x06
            return operand
    raise AssertionError("the program does not end")


@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_filter_refuses_its_calls_and_no_other(processor: str) -> None:
    program = seccomp.syscall_filter(processor)
    blocked = set(seccomp._BLOCKED[processor].values())
    own = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
    for number in range(600):
        expected = 0x50000 | errno.EPERM if number in blocked else 0x7FFF0000
        assert decide(program, own[processor], number) == expected
    foreign = own["aarch64" if processor == "x86_64" else "x86_64"]
    for arch in (foreign, 0x40000003):
        assert decide(program, arch, 0) == 0x80000000
    x32 = decide(program, own[processor], 0x40000000 | 250)
    assert x32 == (0x50000 | errno.ENOSYS if processor == "x86_64" else 0x7FFF0000)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_numbers_are_those_of_the_kernels_headers(processor: str) -> None:
    name = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
    header = Path("/usr/include") / name[processor]
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    lines = [line.split() for line in header.read_text().splitlines() if "__NR_" in line[:20]]
    defined = {words[1]: words[2] for words in lines if len(words) == 3}
    for call, number in seccomp._BLOCKED[processor].items():
        assert defined[f"__NR_{call}"] == str(number)


def test_of_the_system_only_what_programs_need_is_shown(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/opt/tool/bin:/usr/local/other/bin:/usr/local/bin")
    monkeypatch.setattr(sys, "base_prefix", "/usr/local")
    shown = set(system_folders(network=False))
    assert {"/usr", "/usr/local/bin", "/opt/tool", "/usr/local/other", "/etc/ssl/certs"} <= shown
    assert not {"/opt", "/usr/local", "/etc/ssl", "/etc/pki", "/etc", "/etc/resolv.conf"} & shown
    program = "ls -d /etc/ssl/private /usr/local/etc /usr/local/share /opt /etc/shadow 2>/dev/null; ls -d /usr/bin"
    ended = asyncio.run(
        run_script(program, timeout_s=100, cwd=tmp_path, sandbox=require_bubblewrap())
    )
    assert ended.stdout == "/usr/bin\n"
