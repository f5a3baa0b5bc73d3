"""Batches of the server of `provider_server`, and how each provider's API shows one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

DAY_S = 86_400
_MISTRAL = {
    "in_progress": "RUNNING",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelled": "CANCELLED",
}
_GEMINI = {
    "in_progress": "RUNNING",
    "completed": "SUCCEEDED",
    "failed": "FAILED",
    "expired": "PARTIALLY_SUCCEEDED",
    "cancelled": "CANCELLED",
}


@dataclass
class Job:
    """One batch. `fates` has what becomes of each request."""

    id: str
    format: str
    created: float
    requests: list[tuple[str, Mapping[str, Any]]]
    input_file_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    endpoint: str = ""
    status: str = "in_progress"
    ended: float | None = None
    cancelled: float | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    fates: list[str] = field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None


def show_mistral(job: Job) -> dict[str, Any]:
    status = _MISTRAL[job.status]
    if job.cancelled is not None and job.ended is None:
        status = "CANCELLATION_REQUESTED"
    done = sum(fate in ("succeeded", "double", "foreign") for fate in job.fates)
    return {
        "id": job.id,
        "object": "batch",
        "input_files": [job.input_file_id],
        "endpoint": job.endpoint,
        "metadata": dict(job.metadata),
        "errors": [{"message": each["message"], "count": 1} for each in job.errors],
        "status": status,
        "output_file": job.output_file_id or None,
        "error_file": job.error_file_id or None,
        "created_at": int(job.created),
        "total_requests": len(job.requests),
        "completed_requests": len(job.fates),
        "succeeded_requests": done,
        "failed_requests": len(job.fates) - done,
    }


def show_gemini(job: Job) -> dict[str, Any]:
    done = sum(fate in ("succeeded", "double", "foreign") for fate in job.fates)
    output = {"responsesFile": f"files/{job.output_file_id}"} if job.output_file_id else {}
    about = {
        "displayName": job.metadata["displayName"],
        "state": f"BATCH_STATE_{_GEMINI[job.status]}",
        "createTime": _iso(job.created),
        "batchStats": {
            "requestCount": str(len(job.requests)),
            "successfulRequestCount": str(done),
        },
        "output": output,
    }
    found: dict[str, Any] = {"name": job.id, "metadata": about, "done": job.ended is not None}
    if job.errors:
        found["error"] = {"code": 3, "message": job.errors[0]["message"]}
    return found


def show_openai(job: Job, absent: str | None) -> dict[str, Any]:
    """`absent` stands for the id of a file that there is not."""
    status = job.status
    if job.cancelled is not None and job.ended is None:
        status = "cancelling"
    times = {f"{status}_at": int(job.ended)} if job.ended is not None else {}
    done = sum(fate in ("succeeded", "double", "foreign") for fate in job.fates)
    counts = {"total": len(job.requests), "completed": done, "failed": len(job.fates) - done}
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": job.endpoint,
        "errors": {"object": "list", "data": job.errors} if job.errors else None,
        "input_file_id": job.input_file_id,
        "completion_window": "24h",
        "status": status,
        "output_file_id": job.output_file_id or absent,
        "error_file_id": job.error_file_id or absent,
        "created_at": int(job.created),
        "expires_at": int(job.created + DAY_S),
        "request_counts": None if job.errors else counts,
        "metadata": dict(job.metadata),
        **times,
    }


def show_anthropic(job: Job, url: str) -> dict[str, Any]:
    fates = [
        "succeeded" if fate in ("double", "foreign", "missing") else fate for fate in job.fates
    ]
    errored = fates.count("errored") + fates.count("failed")
    status = "in_progress" if job.cancelled is None else "canceling"
    return {
        "id": job.id,
        "type": "message_batch",
        "processing_status": "ended" if job.ended is not None else status,
        "request_counts": {
            "processing": 0 if fates else len(job.requests),
            "succeeded": fates.count("succeeded"),
            "errored": errored,
            "canceled": fates.count("cancelled"),
            "expired": fates.count("expired"),
        },
        "ended_at": _iso(job.ended),
        "created_at": _iso(job.created),
        "expires_at": _iso(job.created + DAY_S),
        "archived_at": None,
        "cancel_initiated_at": _iso(job.cancelled),
        "results_url": None if job.ended is None else f"{url}/messages/batches/{job.id}/results",
    }


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
