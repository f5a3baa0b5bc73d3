"""Sandboxes for scripts: each kind is declared here once, as the arguments that start a command
inside it.

`none` runs the command as it is. `bubblewrap` needs no privileges where user namespaces are
allowed: own PID, network, IPC and mount namespaces, no capabilities, a read-only system without the
user's files, a `/proc` of its own, a filter of system calls. `docker` and `podman` run an image. In
every sandbox a script works in an empty folder of its own, or in the first root if the profile says
so; the roots of the task are readable, the network is off unless the profile allows it, and the
script's environment holds no variable of the evaluator.

The supervisor keeps its limits in each kind; a container also gets them from its engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from evaluator.errors import ConfigurationError, UsageError
from evaluator.lazy_dataclass import frozen
from evaluator.processes.script_folders import environment_files, folders_between, protected_paths
from evaluator.processes.seccomp import machine, syscall_filter

MEMORY_BYTES = 8 << 30
"""What the processes of a script may use together, unless it is set."""
MAX_PROCESSES = 512
"""How many processes of a script there may be at once."""

SandboxKind = Literal["none", "bubblewrap", "docker", "podman"]
SandboxFolder = Literal["fresh", "root", "read_only_root"]
HELP = (
    "Where scripts run: none, bubblewrap, docker:IMAGE or podman:IMAGE, in a folder of their own; "
    "KIND+root: in the first root, which they may then change. Replaces what profiles and "
    "templates say."
)
KINDS: tuple[SandboxKind, ...] = get_args(SandboxKind)
WORK = Path("/evaluator-work")
"""The path, inside a sandbox, of a script's own folder."""
ROOT_VARIABLE = "EVALUATOR_ROOT"
"""The variable of a script in its own folder that holds the path of the first root."""

_STRICTNESS: Mapping[SandboxKind, int] = {"none": 0, "bubblewrap": 1, "docker": 2, "podman": 2}
_PROGRAMS: Mapping[SandboxKind, tuple[str, str]] = {
    "bubblewrap": (
        "bwrap",
        "the package bubblewrap (apt install bubblewrap, dnf install bubblewrap)",
    ),
    "docker": ("docker", "Docker (package docker.io, or https://docs.docker.com/engine/install/)"),
    "podman": ("podman", "the package podman (apt install podman, dnf install podman)"),
}
_LOCAL = "/usr/local"
_FOLDERS = "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /nix/store /gnu/store"
# Of /etc only what programs need to start: the rest may hold passwords and private keys.
_OF_ETC = """
    alternatives fonts group hosts ld.so.cache ld.so.conf ld.so.conf.d localtime mime.types
    nsswitch.conf passwd pki/ca-trust pki/tls/cert.pem pki/tls/certs pki/tls/openssl.cnf protocols
    services ssl/cert.pem ssl/certs ssl/openssl.cnf timezone
"""
_SYSTEM = (
    *_FOLDERS.split(),
    *(f"{_LOCAL}/{name}" for name in ("bin", "include", "lib", "lib64", "libexec", "sbin")),
    *(f"/etc/{name}" for name in _OF_ETC.split()),
)
# Programs that are installed in folders of their own, shown only where PATH names them.
_PACKAGES = ("/opt", _LOCAL)
_KEPT_VARIABLES = ("LANG", "PATH")
_TMPFS_SHARE = 4
_IN_ROOT = "+root"
_IN_PACKAGES = tuple(f"{folder}/" for folder in _PACKAGES)


@frozen
class Sandbox:
    """Where scripts run. `image` and `cpus` are for containers; `network` allows the network.

    `folder` says where a script works: "fresh", an empty folder that is removed at its end;
    "root", the folder that it is started in, which it may change except what later commands
    execute or trust; "read_only_root", that folder without the right to change it.

    `readable` are folders that the script may read, `writable` those that it may also change.
    `hidden` are files and folders below these, without links in their paths, that it cannot see,
    `protected` those that it cannot change in any case.
    """

    kind: SandboxKind = "none"
    image: str | None = None
    cpus: float | None = None
    network: bool = False
    folder: SandboxFolder = "fresh"
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigurationError(
                f"sandbox {self.kind!r} is unknown; expected one of {', '.join(KINDS)}"
            )
        if self.folder not in get_args(SandboxFolder):
            raise ConfigurationError(
                f"sandbox: folder is {self.folder!r}, expected one of "
                f"{', '.join(get_args(SandboxFolder))}"
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
        """The sandbox in `KIND`, `KIND:IMAGE`, `KIND+root` or `KIND+root:IMAGE`.

        Raises: UsageError.
        """
        kind, _, image = text.strip().partition(":")
        name = kind.removesuffix(_IN_ROOT)
        folder: SandboxFolder
        if name == kind:
            folder = "fresh"
        else:
            folder = "root"
        try:
            # The name is checked there.
            sandbox = cls(name, image or None, folder=folder)  # pyright: ignore[reportArgumentType]
        except ConfigurationError as error:
            raise UsageError(str(error)) from error
        if image and not sandbox.is_container:
            raise UsageError(f"sandbox {text!r}: only docker and podman take an image")
        return sandbox

    def __str__(self) -> str:
        """The text that `parse` reads."""
        kind = self.kind + (_IN_ROOT if self.folder == "root" else "")
        if self.image:
            return f"{kind}:{self.image}"
        return kind

    @property
    def is_container(self) -> bool:
        return self.kind in ("docker", "podman")

    def stricter(self, other: SandboxKind | Sandbox | None) -> Sandbox:
        """This sandbox, or the `other` one if it is stricter: none, then bubblewrap, then docker
        and podman.

        A kind takes the settings of this sandbox. The result has the network, and scripts work in
        the first root, only if both sandboxes say so.
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
        both = [sandbox for sandbox in (self, other) if sandbox.kind != "none"]
        return replace(
            chosen,
            network=chosen.network and all(sandbox.network for sandbox in both),
            folder="root" if all(sandbox.folder == "root" for sandbox in both) else "fresh",
        )

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
    import shutil

    name, package = _PROGRAMS[kind]
    found = shutil.which(name)
    if found is None:
        raise ConfigurationError(
            f"the sandbox {kind} needs the program {name}, which is not installed; install "
            f"{package}, or choose another one with --sandbox (none: scripts run without a sandbox)"
        )
    return os.path.abspath(found)


@frozen
class SandboxedCommand:
    """What the launcher runs for a command in a sandbox: `argv` with `env`.

    The sandbox has started the command if it wrote `exit-code` to the descriptor that follows
    `status_option`, or if it created `status_file`. `cleanup` removes what may be left of it.
    `seccomp` is a filter of system calls, which the sandbox reads from a descriptor.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    status_option: str | None = None
    status_file: str | None = None
    cleanup: tuple[str, ...] = ()
    seccomp: bytes | None = None


@frozen
class ScriptPlace:
    """Where one script works: `cwd` is the folder that it was started in, `fresh` a folder of its
    own on this machine, if it has one, and `status_file` a file that a container's engine creates.
    """

    cwd: Path | None
    fresh: Path | None = None
    status_file: str | None = None

    @property
    def inside(self) -> Path:
        """The working folder as the script sees it."""
        if self.fresh is not None or self.cwd is None:
            return WORK
        return self.cwd


def sandboxed_command(
    sandbox: Sandbox,
    argv: tuple[str, ...],
    env: Mapping[str, str],
    place: ScriptPlace,
    name: str,
    memory_bytes: int | None,
    max_processes: int,
) -> SandboxedCommand:
    """`argv` with the variables `env`, inside `sandbox`, which is not `none`.

    `name` is unique; a container has it. Raises: ConfigurationError, if the sandbox is not
    installed; ToolError, if what it has to protect cannot be protected.
    """
    program = sandbox.program() or ""
    own = {key: value for key, value in env.items() if key not in ("HOME", "TMPDIR")}
    own["HOME"] = "/tmp"
    if place.fresh is not None and place.cwd is not None:
        own[ROOT_VARIABLE] = str(place.cwd)
    mounts = script_mounts(sandbox, place)
    if sandbox.kind == "bubblewrap":
        start = (
            program,
            *_bubblewrap(sandbox, own, place, mounts=mounts, memory_bytes=memory_bytes),
            "--",
            *argv,
        )
        processor = machine()
        return SandboxedCommand(
            start,
            {k: env[k] for k in _KEPT_VARIABLES if k in env},
            status_option="--json-status-fd",
            seccomp=None if processor is None else syscall_filter(processor),
        )
    own.pop("PATH", None)  # the image has its own
    start = (
        program,
        *_container(
            sandbox,
            own,
            place,
            mounts=mounts,
            name=name,
            memory_bytes=memory_bytes,
            max_processes=max_processes,
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
        status_file=place.status_file,
        cleanup=(program, "rm", "--force", name),
    )


def _bubblewrap(
    sandbox: Sandbox,
    env: Mapping[str, str],
    place: ScriptPlace,
    mounts: Iterable[Mount],
    memory_bytes: int | None,
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
    options = [
        ("/dev", ("--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")),
        ("/tmp", (*size, "--tmpfs", "/tmp")),
    ]
    covered = [_LOCAL] if os.path.isdir(_LOCAL) else []
    options += [(path, ("--tmpfs", path)) for path in covered]
    options += [
        (path, ("--ro-bind-try", path, path)) for path in system_folders(network=sandbox.network)
    ]
    for mount in mounts:
        if mount.mode == "hidden":
            if os.path.isdir(mount.target):
                words = ("--tmpfs", mount.target, "--remount-ro", mount.target)
            else:
                words = ("--ro-bind", "/dev/null", mount.target)
        else:
            if mount.mode == "writable":
                bind = "--bind"
            else:
                bind = "--ro-bind"
            words = (bind, mount.source, mount.target)
        options.append((mount.target, words))
    # A mount covers what was mounted below its path before.
    for _, words in sorted(options, key=lambda option: len(Path(option[0]).parts)):
        yield from words
    for path in covered:
        yield from ("--remount-ro", path)
    # Read-only: some files in /proc, such as sysrq-trigger, belong to root and ask for no
    # capability.
    yield from ("--proc", "/proc", "--remount-ro", "/proc")
    yield from () if place.inside == Path("/") else ("--remount-ro", "/")
    yield from ("--chdir", str(place.inside))


def system_folders(*, network: bool) -> Iterator[str]:
    """The files and folders of the system that a script in bubblewrap can read; some may not
    exist.
    """
    yield from _SYSTEM
    yield from ("/etc/resolv.conf",) if network else ()
    # The Python of the evaluator, which may be below the user's home: read-only, also inside the
    # working folder.
    shown = set(_SYSTEM)
    packages = (folder for folder in os.get_exec_path() if folder.startswith(_IN_PACKAGES))
    programs = [os.path.dirname(path) if _is_bin(path) else path for path in packages]
    for path in dict.fromkeys((sys.prefix, sys.base_prefix, *programs)):
        if path in ("/usr", *_PACKAGES) or _is_below_any(path, shown):
            continue
        shown.add(path)
        yield path


def _is_bin(path: str) -> bool:
    return os.path.basename(path) in ("bin", "sbin")


def _is_below_any(path: str, folders: Iterable[str]) -> bool:
    """Whether a folder that is shown has `path` in it. Of /usr, /usr/local is not shown."""
    return any(
        Path(path).is_relative_to(folder)
        for folder in folders
        if folder != "/usr" or not path.startswith(_LOCAL)
    )


@frozen
class Mount:
    """A file or folder of this machine, and its path inside the sandbox."""

    mode: Literal["readable", "writable", "hidden"]
    source: str
    target: str


def script_mounts(sandbox: Sandbox, place: ScriptPlace) -> list[Mount]:
    """The folders of the task, those that cover others last.

    Raises: ToolError, if something in the writable root cannot be protected.
    """
    # Containers take one mount for a path; the last one has the fewest rights.
    return list({mount.target: mount for mount in _mounts(sandbox, place)}.values())


def _mounts(sandbox: Sandbox, place: ScriptPlace) -> Iterator[Mount]:
    shown = list(dict.fromkeys((*filter(None, [place.cwd]), *sandbox.readable)))
    writable = list(sandbox.writable)
    if sandbox.folder == "root" and place.cwd is not None:
        writable.append(place.cwd)
    for path in shown:
        if path not in writable and path.is_dir():
            yield Mount("readable", str(path), str(path))
    for path in writable:
        yield Mount("writable", str(path), str(path))
    if place.fresh is not None:
        yield Mount("writable", str(place.fresh), str(WORK))
    covers = [Mount("readable", str(path), str(path)) for path in _protected(sandbox, place)]
    covers += _hidden(sandbox, [*shown, *sandbox.writable])
    # A folder with a mount in it can be renamed, and another one put in its place; one that is a
    # mount itself cannot.
    if sandbox.folder == "root" and place.cwd is not None:
        pinned = (
            str(folder)
            for mount in covers
            for folder in folders_between(place.cwd, Path(mount.target))
        )
        for folder in dict.fromkeys(pinned):
            yield Mount("writable", folder, folder)
    yield from covers


def _protected(sandbox: Sandbox, place: ScriptPlace) -> list[Path]:
    """What a script may not change in the first root, if it works there."""
    if sandbox.folder != "root" or place.cwd is None:
        return []
    root = Path(os.path.realpath(place.cwd))
    named = [
        place.cwd / path.relative_to(root)
        for path in sandbox.protected
        if path.is_relative_to(root) and path != root and path.exists()
    ]
    # What is hidden is covered as a whole.
    return [
        path
        for path in (*protected_paths(place.cwd), *named)
        if not any(
            (root / path.relative_to(place.cwd)).is_relative_to(hidden) for hidden in sandbox.hidden
        )
    ]


def _hidden(sandbox: Sandbox, shown: Iterable[Path]) -> Iterator[Mount]:
    for folder in shown:
        real = os.path.realpath(folder)
        for path in sandbox.hidden:
            is_covered = any(above in sandbox.hidden for above in path.parents)
            if path.is_relative_to(real) and path.exists() and not is_covered:
                yield Mount("hidden", "", str(folder / path.relative_to(real)))
        for path in environment_files(folder):
            yield Mount("hidden", "", str(path))


def _container(
    sandbox: Sandbox,
    env: Mapping[str, str],
    place: ScriptPlace,
    mounts: Sequence[Mount],
    name: str,
    memory_bytes: int | None,
    max_processes: int,
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
        place.status_file or "",
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
    if all(mount.target != "/tmp" for mount in mounts):
        yield from ("--tmpfs", f"/tmp:rw,mode=1777{size}")
    # Files in the working folder then belong to the user, as without a sandbox.
    yield from ("--user", f"{os.getuid()}:{os.getgid()}")
    yield from ("--userns", "keep-id") if sandbox.kind == "podman" and os.getuid() else ()
    for key, value in env.items():
        yield from ("--env", f"{key}={value}")
    for mount in mounts:
        if mount.mode != "hidden":
            yield from ("--mount", _bind(mount))
        elif os.path.isdir(mount.target):
            yield from ("--tmpfs", f"{mount.target}:ro,size=4096")
        else:
            yield from ("--mount", _bind(Mount("readable", "/dev/null", mount.target)))
    yield from ("--workdir", str(place.inside), "--entrypoint", "")


def _bind(mount: Mount) -> str:
    # Written as CSV, so that a path may contain a comma.
    words = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    if mount.mode == "readable":
        words.append("readonly")
    return ",".join(
        '"' + word.replace('"', '""') + '"' if {",", '"'} & set(word) else word for word in words
    )
