"""Finds handler profiles: those of the project in `handlers/` here, then the shipped ones.

A project's profile that names a host, a key variable, a command or a place outside of the project
is used only after the user has allowed it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from evaluator.errors import ConfigurationError
from evaluator.files.locations import shipped
from evaluator.files.trust import ProjectFile, is_allowed
from evaluator.handler.config import HandlerConfig, read_profile
from evaluator.library.bounds import ModelUse
from evaluator.nodes import Task
from evaluator.tools.mcp.servers import McpServer


class Profiles(dict[str, HandlerConfig]):
    """Profiles by name.

    `broken` has the error of each profile that cannot be used; `untrusted` the file of each profile
    of the project that the user has not allowed. `files`: the file of each profile; `replacing`: of
    those that hide a later one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.broken: dict[str, str] = {}
        self.untrusted: dict[str, ProjectFile] = {}
        self.files: dict[str, str] = {}
        self.replacing: dict[str, str] = {}


def load_profiles(*folders: str | Path, trust: bool = False) -> Profiles:
    """Profiles by name, from `folders` first (default: `handlers/` here, if there is one), shipped
    ones last.

    The profiles in `handlers/` here are a project's: those that name a host, a key or a command are
    left out unless the user has allowed them, or with `trust`. Folders that are given are the
    caller's own choice and need no permission.

    A profile that cannot be used is an error only for those who name it; it still hides a later one
    of its name.
    Raises: ConfigurationError, if one of `folders` does not exist, or the user's permissions cannot
    be read.
    """
    shipped_folder = shipped("handlers")
    project = Path("handlers")
    # In a checkout of evaluator, the folder here is the shipped one.
    has_own = project.is_dir() and not project.samefile(shipped_folder)
    if folders:
        given = [Path(f) for f in folders]
        searched = [f for f in given if not (f.is_dir() and f.samefile(shipped_folder))]
    else:
        searched = [project] * has_own
    profiles = Profiles()
    for folder in [*searched, shipped_folder]:
        if not folder.is_dir():
            raise ConfigurationError(f"no folder of handler profiles at {folder}")
        for path in sorted(folder.glob("*.xml")):
            _add_profile(
                profiles,
                path,
                needs_permission=not folders and not trust and folder is not shipped_folder,
                is_shipped=folder is shipped_folder,
            )
    return profiles


@lru_cache(maxsize=32)
def _read_shipped(path: Path, _mtime_ns: int, _size: int) -> tuple[HandlerConfig, str]:
    """`read_profile` of a shipped profile, which every Evaluator of a process reads."""
    return read_profile(path)


def _add_profile(
    profiles: Profiles, path: Path, *, needs_permission: bool, is_shipped: bool
) -> None:
    """Adds the profile in `path`, unless an earlier one has its name."""
    try:
        if is_shipped:
            status = path.stat()
            config, text = _read_shipped(path, status.st_mtime_ns, status.st_size)
        else:
            config, text = read_profile(path)
    except (ConfigurationError, OSError) as error:
        if path.stem not in profiles and path.stem not in profiles.untrusted:
            profiles.broken.setdefault(path.stem, str(error))
        return
    name = config.name
    if name in profiles or name in profiles.untrusted:
        profiles.replacing[name] = profiles.files[name]
        return
    if name in profiles.broken:
        return
    profiles.files[name] = str(path)
    if needs_permission:
        here = Path.cwd()
        file = ProjectFile.of(here, path, content=text, names=names_of(config, here))
        if not is_allowed(file):
            profiles.untrusted[name] = file
            return
    profiles[name] = config


def profile_named(profiles: Mapping[str, HandlerConfig], name: str) -> HandlerConfig:
    """The profile of that name.

    Raises: ConfigurationError, if there is none, it cannot be used, or it is a project's and not
    allowed.
    """
    config = profiles.get(name)
    if config is not None:
        return config
    if isinstance(profiles, Profiles):
        if name in profiles.untrusted:
            raise ConfigurationError(
                f"the handler profile {name!r} is not used: {profiles.untrusted[name].refusal()}"
            )
        if name in profiles.broken:
            raise ConfigurationError(
                f"the handler profile {name!r} cannot be used:\n{profiles.broken[name]}"
            )
    raise ConfigurationError(
        f"no handler profile is called {name!r}; there are: {', '.join(sorted(profiles))}"
    )


class TurnsByProfile(NamedTuple):
    """The turns and tools of each task, for bounds: those of the profile `handler`, else of the one
    that the task names, else of `default`. An unknown profile counts as `default`: a run with it
    makes no call.
    """

    handler: str | None
    default: ModelUse
    profiles: tuple[tuple[str, ModelUse], ...]

    def __call__(self, task: Task) -> ModelUse:
        named = self.handler or task.profile
        return dict(self.profiles).get(named or "", self.default)


def turns_by_profile(
    profiles: Mapping[str, HandlerConfig], default: HandlerConfig, handler: str | None = None
) -> TurnsByProfile:
    """See `TurnsByProfile`. Profiles with equal turns and tools give equal values."""
    uses = {
        name: ModelUse(config.max_turns, bool(config.tools))
        for name, config in {**profiles, default.name: default}.items()
    }
    return TurnsByProfile(handler, uses[default.name], profiles=tuple(uses.items()))


def files_of_profiles(project: str | Path) -> list[ProjectFile]:
    """The profiles in `handlers/` of a project that name something; those that cannot be read are
    left out.
    """
    files: list[ProjectFile] = []
    for path in sorted(Path(project, "handlers").glob("*.xml")):
        with suppress(ConfigurationError):
            config, text = read_profile(path)
            files.append(
                ProjectFile.of(project, path, content=text, names=names_of(config, project))
            )
    return [file for file in files if file.names]


def unreadable_profiles(project: str | Path) -> list[str]:
    """The error of each profile in `handlers/` of a project that cannot be used."""
    folder = Path(project, "handlers")
    if not folder.is_dir():
        return []
    broken = load_profiles(folder).broken
    return list(broken.values())


def names_of(config: HandlerConfig, project: str | Path) -> tuple[str, ...]:
    """A line for each thing that the profile of a project names and that is not the project's own
    to give.
    """
    return tuple(_names(config, os.path.realpath(project)))


def _names(config: HandlerConfig, project: str) -> Iterator[str]:
    from evaluator.tools.controls import controls_of

    if config.base_url is not None:
        yield f"the host of {config.base_url}, which gets what tasks send"
    if config.api_key_env is not None:
        yield f"the environment variable {config.api_key_env}, whose value is sent as the key"
    for server in config.mcp:
        yield from _of_server(server)
    for root in config.roots:
        path = os.path.realpath(os.path.join(project, root))
        if path != project and not path.startswith(os.path.join(project, "")):
            yield f"the folder {path}, which tasks may read"
    for grant in config.tools:
        if controls_of(grant.name) and "allow" in (
            grant.policy,
            *(rule.policy for rule in grant.rules),
        ):
            yield f"the tool {grant.name}, which runs programs without asking"
    if config.sandbox.image is not None:
        yield f"the image {config.sandbox.image}, which is fetched and run ({config.sandbox.kind})"
    if config.sandbox.kind != "none" and config.sandbox.folder == "root":
        yield "the first root, which scripts in the sandbox may change"
    if config.computer is not None:
        yield f"the screen {config.computer.name}"


def _of_server(server: McpServer) -> Iterator[str]:
    if server.command is not None:
        from shlex import join

        yield f"the command {join((server.command, *server.args))} (MCP server {server.name})"
    if server.url is not None:
        yield f"the host of {server.url} (MCP server {server.name})"
    for variable in server.variables():
        yield f"the environment variable {variable}, which the MCP server {server.name} gets"
