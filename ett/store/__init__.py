"""The job store: event logs of many jobs in SQLite or PostgreSQL, each record once, and a summary of each job."""

from ett.store.job_row import JobRow
from ett.store.job_store import IngestResult, Store, open_store
from ett.store.log_lines import Rejected

__all__ = ["IngestResult", "JobRow", "Rejected", "Store", "open_store"]
