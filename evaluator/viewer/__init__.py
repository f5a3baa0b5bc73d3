"""The static report of batches: one HTML page with numbers, plots, samples and transcripts."""

from evaluator.viewer.report import (
    MAX_SAMPLES,
    ReportBatch,
    ReportWritten,
    compare_batches,
    write_report,
)

__all__ = ["MAX_SAMPLES", "ReportBatch", "ReportWritten", "compare_batches", "write_report"]


def __dir__() -> list[str]:
    return __all__
