"""Loaded only as `ett.recovery`: a second copy under another name would split its state (ADR 0001)."""

if __name__ != "ett.recovery":
    raise ImportError(f"import this package as ett.recovery, not as {__name__} (docs/adr/0001-folders-at-the-root.md)")

from ett.recovery.fault_plan import FaultPlan

__all__ = ["FaultPlan"]
