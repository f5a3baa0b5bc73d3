"""The rows of a batch: from files, Python objects and frames to samples, as a stream, with exact places of errors.

A row becomes a `Sample` in three steps: a reader gives it as a JSON object (`jsonl`, `delimited`, `tables`, `values`),
a `Selection` keeps it or not, and a `RowMapping` says what of it is input, id, target and metadata.

- Memory holds the rows that were asked for and, of all others, 16 bytes and a hash each, by which ids stay unique.
- Nothing is guessed: a field that is missing, a broken line, NaN, a name that stands twice are errors with their place.
- A row is data: only the mapping's own expressions are evaluated, in the sandbox of `evaluator.binding`.
"""

from evaluator.batch.rows.mapping import RowMapping
from evaluator.batch.rows.problems import RowError
from evaluator.batch.rows.selection import Selection
from evaluator.batch.rows.source import RowSource, open_rows

__all__ = ["RowError", "RowMapping", "RowSource", "Selection", "open_rows"]
