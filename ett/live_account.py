"""A job's account while its records arrive: the same answer as reading the whole log at that moment."""

from __future__ import annotations

from ett import event_columns
from ett.accounting import DEFAULT_POLICY, JobAccount, account, account_view
from ett.column_view import ColumnView
from ett.event_reader import EventLog, LogMerger, ParsedFile, merged, parse_file
from ett.event_schema import Record
from ett.job_window import AccountingPolicy
from ett.log_columns import NATIVE, LogColumns

# Records of other hosts may come this much later than their time and still cost nothing; what comes later than that is
# right too, after its attempt was swept again.
SETTLE_S = 0.5


class LiveAccount:
    """Fed record by record, or with the lines that files grew by, in any order, with duplicates.

    Late records revise what was said before. Finished attempts, and what lies well behind the slowest rank, are swept
    once.
    The pieces of an account are to be read before the next records are added.
    """

    def __init__(self, policy: AccountingPolicy = DEFAULT_POLICY, *, settle_s: float = SETTLE_S) -> None:
        self._policy, self._settle_s = policy, settle_s
        is_native = NATIVE is not None and event_columns.NATIVE is not None
        self._columns = LogColumns() if is_native else None
        self._view: ColumnView | None = None
        self._merger = LogMerger()  # where columns cannot hold the log
        self._is_merged = not is_native

    def add(self, record: Record) -> bool:
        """Return whether the record is new: its number in its file was not there before."""
        if self._is_merged or self._columns is None:
            return self._merger.add(record)
        is_new = self._columns.add(record)
        self._judge()
        return is_new

    def add_file(self, file: ParsedFile) -> None:
        columns = self._exact_columns()
        if columns is None:
            self._merger.add_file(file)
            return
        columns.count_bad(is_torn=file.is_torn, num_corrupt=file.num_corrupt, num_malformed=file.num_malformed)
        for record in file.records:
            self.add(record)

    def add_bytes(self, name: str, data: bytes) -> None:
        """Take whole lines that a file grew by."""
        columns = self._exact_columns()
        if columns is None:
            self._merger.add_file(parse_file(name, data))
            return
        columns.add_lines(name, data, event_columns.parse_lines(data), is_last=False)
        self._judge()

    @property
    def is_incremental(self) -> bool:
        """False where each account is of all records, because columns cannot hold them exactly."""
        columns = self._exact_columns()
        return columns is not None and not columns.may_hold_copies

    @property
    def num_records(self) -> int:
        columns = self._exact_columns()
        return len(self._merger.log().records) if columns is None else columns.num_records

    def account(self, as_of_ns: int, *, cut_at_as_of: bool = False) -> JobAccount | None:
        """Return the job's account at `as_of_ns`; None while nothing was added."""
        columns = self._exact_columns()
        if columns is None or columns.may_hold_copies:
            log = self._merged_log()
            return account(log, as_of_ns=as_of_ns, cut_at_as_of=cut_at_as_of, policy=self._policy)
        log = EventLog(columns=columns)
        if cut_at_as_of:
            return account(log, as_of_ns=as_of_ns, policy=self._policy)
        if self._view is None:
            self._view = ColumnView(columns, settle_s=self._settle_s)
        else:
            self._view.refresh()
        try:
            return account_view(self._view, log, as_of_ns=as_of_ns, policy=self._policy)
        except OverflowError:
            return account(self._merged_log(), as_of_ns=as_of_ns, cut_at_as_of=False, policy=self._policy)

    def _exact_columns(self) -> LogColumns | None:
        return None if self._is_merged else self._columns

    def _judge(self) -> None:
        """A record that columns cannot hold: all of them become records, once and for good."""
        columns = self._columns
        if columns is not None and columns.is_odd:
            self._merger = merged(columns)
            self._is_merged, self._columns, self._view = True, None, None

    def _merged_log(self) -> EventLog:
        columns = self._exact_columns()
        return (self._merger if columns is None else merged(columns)).log()
