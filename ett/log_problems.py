"""What a log lacks: torn, corrupt, missing, double and dropped records, by count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class LogProblems:
    """What a log lacks, by count; the names are the report's flags."""

    torn_tail: int = 0
    corrupt_record: int = 0
    malformed_record: int = 0
    lost_records: int = 0
    duplicate_record: int = 0
    dropped_records: int = 0  # what the writers themselves say that they could not write

    def flags(self) -> list[str]:
        """Names of what was lost; a duplicate loses nothing and is no flag."""
        return [name for name in _LOSSES if getattr(self, name)]

    def warnings(self) -> list[str]:
        return [text.format(n=getattr(self, name)) for name, text in _LOSSES.items() if getattr(self, name)]


_LOSSES = {
    "torn_tail": "{n} file(s) end in a torn line, which was dropped",
    "corrupt_record": "{n} corrupt record(s) skipped: the checksum does not match",
    "malformed_record": "{n} malformed record(s) skipped: a field that a rule needs is missing or of another type",
    "lost_records": "{n} record(s) lost: their sequence numbers are missing",
    "dropped_records": "{n} record(s) dropped by their writer, which could not write them in time",
}
