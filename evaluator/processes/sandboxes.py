"""Sandboxes for scripts: each kind is declared here once, as the arguments that start a command
inside it.

`none` runs the command as it is. `bubblewrap` needs no privileges where user namespaces are
allowed: own PID, network, IPC and mount namespaces, no capabilities, a read-only system without the
user's files, a `/proc` of its own. `docker` and `podman` run an image. In every sandbox the working
folder is writable, other roots of the task are readable, the network is off unless the profile
allows it, and the script's environment holds no variable of the evaluator.

The supervisor keeps its limits in each kind; a container also gets them from its engine.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from evaluator.errors import ConfigurationError, UsageError

SandboxKind = Literal["none", "bubblewrap", "docker", "podman"]
HELP = (
    "Where scripts run: none, bubblewrap, docker:IMAGE or podman:IMAGE. Replaces what profiles "
    "and templates say."
)
KINDS: tuple[SandboxKind, ...] = get_args(SandboxKind)
PROTECTED = ("handlers", "templates", "evaluator.toml", ".git")
"""Names in the working folder that a script in a sandbox can read and cannot change: they decide
what runs next.
"""

_STRICTNESS: Mapping[SandboxKind, int] = {"none": 0, "bubblewrap": 1, "docker": 2, "podman": 2}
_PROGRAMS: Mapping[SandboxKind, tuple[str, str]] = {
    "bubblewrap": (
        "bwrap",
        "the package bubblewrap (apt install bubblewrap, dnf install bubblewrap)",
    ),
    "docker": ("docker", "Docker (package docker.io, or https://docs.docker.com/engine/install/)"),
    "podman": ("podman", "the package podman (apt install podman, dnf install podman)"),
}
# Of /etc only what programs need to start: the rest may hold passwords.
_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
    *(
        f"/etc/{name}"
        for name in (
            "alternatives",
            "fonts",
            "group",
            "hosts",
            "ld.so.cache",
            "ld.so.conf",
            "ld.so.conf.d",
            "localtime",
            "mime.types",
            "nsswitch.conf",
            "passwd",
            "pki",
            "protocols",
            "services",
            "ssl",
            "timezone",
        )
    ),
)
_KEPT_VARIABLES = ("LANG", "PATH")
_TMPFS_SHARE = 4


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Where scripts run. `image` and `cpus` are for containers; `network` allows the network.

    `readable` are folders that the script may read, `writable` those that it may also change,
    besides its working folder. `hidden` are files and folders below these, without links in their
    paths, that it cannot see.
    """

    kind: SandboxKind = "none"
    image: str | None = None
    cpus: float | None = None
    network: bool = False
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigurationError(
                f"sandbox {self.kind!r} is unknown; expected one of {', '.join(KINDS)}"
            )
        if self.cpus is not None and self.cpus <= 0:
            raise ConfigurationError(f"sandbox: cpus is {self.cpus!r}, expected a number above 0")
        if self.is_container and not self.image:
            raise ConfigurationError(
                f'the sandbox {self.kind} needs an image: <sandbox kind="{self.kind}" '
                'image="python:3.12-slim"/> in '
                f"the handler profile, or --sandbox {self.kind}:IMAGE"
            )

    @classmethod
    def parse(cls, text: str) -> Sandbox:
        """The sandbox in `KIND` or `KIND:IMAGE`. Raises: UsageError."""
        kind, _, image = text.strip().partition(":")
        try:
            sandbox = cls(kind, image or None)  # pyright: ignore[reportArgumentType]  (checked there)
        except ConfigurationError as error:
            raise UsageError(str(error)) from error
        if image and not sandbox.is_container:
            raise UsageError(f"sandbox {text!r}: only docker and podman take an image")
        return sandbox

    def __str__(self) -> str:
        """The text that `parse` reads."""
        if self.image:
            return f"{self.kind}:{self.image}"
        return self.kind

    @property
    def is_container(self) -> bool:
        return self.kind in ("docker", "podman")

    def stricter(self, other: SandboxKind | Sandbox | None) -> Sandbox:
        """This sandbox, or the `other` one if it is stricter: none, then bubblewrap, then docker
        and podman.

        A kind takes the settings of this sandbox. The result has the network only if both sandboxes
        have it.
        Raises: ConfigurationError, if a container would have no image.
        """
        if other is None or (other if isinstance(other, str) else other.kind) == "none":
            return self
        if isinstance(other, str):
            other = replace(self, kind=other)
        if _STRICTNESS[other.kind] > _STRICTNESS[self.kind]:
            chosen = other
        else:
            chosen = self
        has_network = all(sandbox.network or sandbox.kind == "none" for sandbox in (self, other))
        if has_network or not chosen.network:
            return chosen
        return replace(chosen, network=False)

    def program(self) -> str | None:
        """The path of the program that starts this sandbox; None for `none`.

        Raises: ConfigurationError, if it is not installed; the message names the package.
        """
        if self.kind == "none":
            return None
        return program_of(self.kind)


NO_SANDBOX = Sandbox()


def program_of(kind: SandboxKind) -> str:
    """The path of the program that starts a sandbox of this kind, which is not `none`.

    Raises: ConfigurationError, if it is not installed; the message names the package.
    """
    name, package = _PROGRAMS[kind]
    found = shutil.which(name)
    if found is None:
        raise ConfigurationError(
            f"the sandbox {kind} needs the program {name}, which is not installed; install "
            f"{package}, or choose "
            "another one with --sandbox (none: scripts run without a sandbox)"
        )
    return os.path.abspath(found)


@dataclass(frozen=True, slots=True)
class SandboxedCommand:
    """What the launcher runs for a command in a sandbox: `argv` with `env`.

    The sandbox has started the command if it wrote `exit-code` to the descriptor that follows
    `status_option`, or if it created `status_file`. `cleanup` removes what may be left of it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    status_option: str | None = None
    status_file: str | None = None
    cleanup: tuple[str, ...] = ()


def sandboxed_command(
    sandbox: Sandbox,
    argv: tuple[str, ...],
    env: Mapping[str, str],
    cwd: Path,
    name: str,
    memory_bytes: int | None,
    max_processes: int,
    status_file: str | None,
) -> SandboxedCommand:
    """`argv` with the variables `env`, in the folder `cwd`, inside `sandbox`, which is not `none`.

    `name` is unique; a container has it. Raises: ConfigurationError, if the sandbox is not
    installed.
    """
    program = sandbox.program() or ""
    own = {key: value for key, value in env.items() if key not in ("HOME", "TMPDIR")} | {
        "HOME": "/tmp"
    }
    if sandbox.kind == "bubblewrap":
        start = (
            program,
            *_bubblewrap(sandbox, own, cwd=cwd, memory_bytes=memory_bytes),
            "--",
            *argv,
        )
        return SandboxedCommand(
            start,
            {k: env[k] for k in _KEPT_VARIABLES if k in env},
            status_option="--json-status-fd",
        )
    own.pop("PATH", None)  # the image has its own
    start = (
        program,
        *_container(
            sandbox,
            own,
            cwd=cwd,
            name=name,
            memory_bytes=memory_bytes,
            max_processes=max_processes,
            status_file=status_file or "",
        ),
        "--",
        sandbox.image or "",
        *argv,
    )
    # The client needs the user's settings, such as DOCKER_HOST; it runs outside the sandbox, like
    # the evaluator.
    client = {
        key: value
        for key, value in os.environ.items()
        if key.startswith(("DOCKER_", "CONTAINER", "XDG_"))
    }
    return SandboxedCommand(
        start,
        {**client, **env},
        status_option=None,
        status_file=status_file,
        cleanup=(program, "rm", "--force", name),
    )


def _bubblewrap(
    sandbox: Sandbox, env: Mapping[str, str], cwd: Path, memory_bytes: int | None
) -> Iterator[str]:
    yield from ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL")
    yield from ("--share-net",) if sandbox.network else ()
    yield from ("--die-with-parent", "--new-session", "--clearenv")
    for key, value in env.items():
        yield from ("--setenv", key, value)
    if memory_bytes is None:
        size = ()
    else:
        size = ("--size", str(max(memory_bytes // _TMPFS_SHARE, 1 << 20)))
    mounts = [
        ("/dev", ("--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")),
        ("/tmp", (*size, "--tmpfs", "/tmp")),
    ]
    mounts += [
        (path, ("--ro-bind-try", path, path)) for path in _system_folders(network=sandbox.network)
    ]
    for mode, path in _folders(sandbox, cwd):
        if mode == "hidden":
            if os.path.isdir(path):
                cover = ("--tmpfs", path, "--remount-ro", path)
            else:
                cover = ("--ro-bind", "/dev/null", path)
            mounts.append((path, cover))
        else:
            mounts.append((path, ("--bind" if mode == "writable" else "--ro-bind", path, path)))
    # A mount covers what was mounted below its path before.
    for _, words in sorted(mounts, key=lambda mount: len(Path(mount[0]).parts)):
        yield from words
    # Read-only: some files in /proc, such as sysrq-trigger, belong to root and ask for no
    # capability.
    yield from ("--proc", "/proc", "--remount-ro", "/proc")
    yield from () if cwd == Path("/") else ("--remount-ro", "/")
    yield from ("--chdir", str(cwd))


def _system_folders(*, network: bool) -> Iterator[str]:
    yield from _SYSTEM
    yield from ("/etc/resolv.conf",) if network else ()
    # The Python of the evaluator, which may be below the user's home: read-only, also inside the
    # working folder.
    for path in dict.fromkeys((sys.prefix, sys.base_prefix)):
        if not any(Path(path).is_relative_to(folder) for folder in _SYSTEM):
            yield path


def _folders(
    sandbox: Sandbox, cwd: Path
) -> Iterator[tuple[Literal["readable", "writable", "hidden"], str]]:
    """The folders of the task, those that cover others last."""
    for path in sandbox.readable:
        if path != cwd and path.is_dir():
            yield "readable", str(path)
    for path in (cwd, *sandbox.writable):
        yield "writable", str(path)
    for name in PROTECTED:
        if os.path.lexists(cwd / name) and not os.path.islink(cwd / name):
            yield "readable", str(cwd / name)
    for shown in (cwd, *sandbox.readable, *sandbox.writable):
        real = os.path.realpath(shown)
        for path in sandbox.hidden:
            is_covered = any(above in sandbox.hidden for above in path.parents)
            if path.is_relative_to(real) and path.exists() and not is_covered:
                yield "hidden", str(shown / path.relative_to(real))


def _container(
    sandbox: Sandbox,
    env: Mapping[str, str],
    cwd: Path,
    name: str,
    memory_bytes: int | None,
    max_processes: int,
    status_file: str,
) -> Iterator[str]:
    yield from (
        "run",
        "--rm",
        "--interactive",
        "--init",
        "--pull",
        "never",
        "--name",
        name,
        "--cidfile",
        status_file,
    )
    yield from (
        "--network",
        "bridge" if sandbox.network else "none",
        "--read-only",
        "--cap-drop",
        "ALL",
    )
    yield from ("--security-opt", "no-new-privileges", "--pids-limit", str(max_processes))
    if sandbox.cpus is not None:
        yield from ("--cpus", f"{sandbox.cpus:g}")
    size = ""
    if memory_bytes is not None:
        yield from ("--memory", str(memory_bytes), "--memory-swap", str(memory_bytes))
        size = f",size={max(memory_bytes // _TMPFS_SHARE, 1 << 20)}"
    yield from ("--tmpfs", f"/tmp:rw,mode=1777{size}")
    # Files in the working folder then belong to the user, as without a sandbox.
    yield from ("--user", f"{os.getuid()}:{os.getgid()}")
    yield from ("--userns", "keep-id") if sandbox.kind == "podman" and os.getuid() else ()
    for key, value in env.items():
        yield from ("--env", f"{key}={value}")
    for mode, path in _folders(sandbox, cwd):
        if mode == "hidden" and os.path.isdir(path):
            yield from ("--tmpfs", f"{path}:ro,size=4096")
        elif mode == "hidden":
            yield from ("--mount", _bind("/dev/null", path, mode="readable"))
        else:
            yield from ("--mount", _bind(path, path, mode=mode))
    yield from ("--workdir", str(cwd), "--entrypoint", "")


def _bind(source: str, target: str, mode: str) -> str:
    # Written as CSV, so that a path may contain a comma.
    words = (
        "type=bind",
        f"source={source}",
        f"target={target}",
        *(("readonly",) if mode == "readable" else ()),
    )
    return ",".join(
        '"' + word.replace('"', '""') + '"' if {",", '"'} & set(word) else word for word in words
    )
