"""The rows of a batch: files, Python objects and frames are read as a stream of samples, with exact
error positions.

A row becomes a `Sample` in three steps: a reader returns it as a JSON object (`file_rows`,
`hf_rows`, `object_rows`), a `Selection` selects it, and a `RowMapping` gives its
input, id, target and metadata.

- Memory holds the requested rows, and 16 bytes and a hash for every other one, to keep ids unique.
- Nothing is guessed: a missing field, a broken line, NaN and a duplicate name are errors with their
  position.
- A row is data: only the mapping's own expressions are evaluated, in the sandbox of
  `evaluator.language`.
"""

from evaluator.batch.rows.fewshot import FewShot as FewShot
from evaluator.batch.rows.mapping import RowMapping as RowMapping
from evaluator.batch.rows.object_rows import RowError as RowError
from evaluator.batch.rows.object_rows import Selection as Selection
from evaluator.batch.rows.row_source import DataFrame as DataFrame
from evaluator.batch.rows.row_source import RowsInput as RowsInput
from evaluator.batch.rows.row_source import RowSource as RowSource
from evaluator.batch.rows.row_source import open_rows as open_rows
