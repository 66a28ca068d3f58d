"""A job's account while its records arrive: the same answer as reading the whole log at that moment."""

from __future__ import annotations

from ett.accounting import DEFAULT_POLICY, JobAccount, account
from ett.event_reader import LogMerger, ParsedFile
from ett.event_schema import Record
from ett.job_window import AccountingPolicy


class LiveAccount:
    """Fed record by record, in any order, with duplicates; late records revise what was said before."""

    def __init__(self, policy: AccountingPolicy = DEFAULT_POLICY) -> None:
        self._policy = policy
        self._merger = LogMerger()

    def add(self, record: Record) -> bool:
        """Return whether the record is new."""
        return self._merger.add(record)

    def add_file(self, file: ParsedFile) -> None:
        self._merger.add_file(file)

    def account(self, as_of_ns: int, *, cut_at_as_of: bool = False) -> JobAccount | None:
        """Return the job's account at `as_of_ns`; None while nothing was added."""
        return account(self._merger.log(), as_of_ns=as_of_ns, cut_at_as_of=cut_at_as_of, policy=self._policy)
