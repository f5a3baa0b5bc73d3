"""The components of a graph of names, found without recursion: a chain of any length is walked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def components(graph: Mapping[str, Collection[str]], starts: Iterable[str] | None = None) -> list[list[str]]:
    """The strongly connected components that `starts` reach (None: all), each after those that it leads to.

    A name that is on no cycle is a component of its own. Names without an entry in `graph` are left out.
    Time is linear.

    Source: Tarjan, "Depth-first search and linear graph algorithms", SIAM Journal on Computing 1(2), 1972.
    """
    found: list[list[str]] = []
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    pending: list[str] = []
    is_pending: set[str] = set()
    for start in graph if starts is None else starts:
        if start in numbers or start not in graph:
            continue
        way = [(start, iter(graph[start]))]
        numbers[start] = lowest[start] = len(numbers)
        pending.append(start)
        is_pending.add(start)
        while way:
            name, targets = way[-1]
            for target in targets:
                if target not in graph:
                    continue
                if target not in numbers:
                    numbers[target] = lowest[target] = len(numbers)
                    pending.append(target)
                    is_pending.add(target)
                    way.append((target, iter(graph[target])))
                    break
                if target in is_pending:
                    lowest[name] = min(lowest[name], numbers[target])
            else:
                way.pop()
                if way:
                    lowest[way[-1][0]] = min(lowest[way[-1][0]], lowest[name])
                if lowest[name] == numbers[name]:
                    at = len(pending) - 1
                    while pending[at] != name:
                        at -= 1
                    found.append(pending[at:])
                    is_pending.difference_update(pending[at:])
                    del pending[at:]
    return found
