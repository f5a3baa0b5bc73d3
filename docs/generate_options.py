"""Writes the table of options in docs/howto/run-a-batch.md from their declarations:
python docs/generate_options.py

`page()` gives the page, so that a test can hold the committed one to it.
"""

from __future__ import annotations

import re
from pathlib import Path

from evaluator.batch.definition import BatchDefinition
from evaluator.fields.listing import Entry, entries_of

PAGE = Path(__file__).parent / "howto" / "run-a-batch.md"
BEGIN = (
    "<!-- Written by docs/generate_options.py from the declared options; change them, not this. -->"
)
END = "<!-- The end of what docs/generate_options.py writes. -->"


def table() -> str:
    """The options by section."""
    sections: dict[str, list[str]] = {}
    for entry in entries_of(BatchDefinition):
        sections.setdefault(entry.section, []).append(_row(entry))
    parts: list[str] = []
    for title, rows in sections.items():
        parts.append(
            f"\n**{title.replace('--resume', '`--resume`')}**\n\n| key or argument | option | meaning |\n|---|---|---|\n"
        )
        parts += rows
    return "".join(parts) + "\n"


def page() -> str:
    """The whole page with a new table."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


def _row(entry: Entry) -> str:
    name = f"`{'.'.join(entry.path)}`"
    if not entry.field.is_stored:
        name += " (not in a file)"
    flag = "" if entry.flag is None else f"`{entry.flag.name}`"
    # Without the backticks, two hyphens become a dash.
    text = re.sub(r"--[a-z-]+", r"`\g<0>`", entry.help.replace("|", "\\|"))
    return f"| {name} | {flag} | {text} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
