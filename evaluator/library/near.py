"""Near names: what an author who wrote an unknown name probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint that names up to three known names close to `name`, else `otherwise`."""
    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(candidate.lower().replace("-", "_"), candidate)
    near = get_close_matches(name.lower().replace("-", "_"), list(folded), n=3, cutoff=0.6)
    if not near:
        return otherwise
    return "did you mean " + " or ".join(f"`{folded[match]}`" for match in near) + "?"


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Names for a message, sorted, cut after `limit`; `nothing` where there are none."""
    ordered = sorted(names)
    shown = ", ".join(f"`{name}`" for name in ordered[:limit])
    if len(ordered) > limit:
        shown += f" and {len(ordered) - limit} more"
    return shown or "nothing"


def shortened(text: str, limit: int = 60) -> str:
    """`text` quoted for a message, on one line, cut after `limit` characters."""
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= limit else flat[: limit - 1] + "…")
