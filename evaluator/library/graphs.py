"""Graphs of names, walked without recursion, so that a chain may have any length. Every function
takes linear time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

MAX_CYCLE = 50
_Targets = TypeVar("_Targets", bound=Collection[str])


def reachable(
    starts: Iterable[str], targets_of: Callable[[str], _Targets | None]
) -> dict[str, _Targets]:
    """The names that `starts` lead to, themselves included, each with its targets.

    A name for which `targets_of` returns None is left out.
    """
    found: dict[str, _Targets] = {}
    waiting = [*starts]
    while waiting:
        name = waiting.pop()
        if name not in found and (targets := targets_of(name)) is not None:
            found[name] = targets
            waiting += targets
    return found


def components(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The strongly connected components of a graph, each after those that it leads to.

    A name that is on no cycle is a component of its own. Names without an entry in `graph` are left
    out.

    Source: Tarjan, "Depth-first search and linear graph algorithms", SIAM Journal on Computing
    1(2), 1972.
    """
    found: list[list[str]] = []
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    pending: dict[str, None] = {}
    for start in graph:
        if start in numbers:
            way = []
        else:
            way = [(start, iter(graph[start]))]
        while way:
            name, targets = way[-1]
            if name not in numbers:
                numbers[name] = lowest[name] = len(numbers)
                pending[name] = None
            for target in targets:
                if target in graph and target not in numbers:
                    way.append((target, iter(graph[target])))
                    break
                if target in pending:
                    lowest[name] = min(lowest[name], numbers[target])
            else:
                way.pop()
                if way:
                    lowest[way[-1][0]] = min(lowest[way[-1][0]], lowest[name])
                if lowest[name] == numbers[name]:
                    component = [pending.popitem()[0]]
                    while component[-1] != name:
                        component.append(pending.popitem()[0])
                    found.append(component[::-1])
    return found


def cycles(graph: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """For each name that is on a cycle a shortest one, from the name back to it.

    In a component of more than MAX_CYCLE names each cycle is shown by its first two names.
    """
    found: dict[str, list[str]] = {}
    for component in components(graph):
        members = frozenset(component)
        for name in component:
            inside = [target for target in graph[name] if target in members]
            if len(component) > MAX_CYCLE:
                found[name] = [name, inside[0], "…", name]
            elif inside:
                found[name] = _shortest_cycle(graph, name, members=members)
    return {name: found[name] for name in graph if name in found}


def _shortest_cycle(
    graph: Mapping[str, Collection[str]], start: str, members: Collection[str]
) -> list[str]:
    """A shortest path from `start` back to it inside `members`, which has one."""
    before: dict[str, str] = {}
    waiting = [start]
    for name in waiting:
        for target in graph[name]:
            if target == start:
                way = [start, name]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if target in members and target not in before:
                before[target] = name
                waiting.append(target)
    raise ValueError(f"{start!r} is on no cycle")
