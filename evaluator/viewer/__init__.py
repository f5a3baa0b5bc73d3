"""What a batch came to, as a page to look at."""

from evaluator.viewer.report import MAX_SAMPLES, ReportBatch, ReportWritten, write_report

__all__ = ["MAX_SAMPLES", "ReportBatch", "ReportWritten", "write_report"]
