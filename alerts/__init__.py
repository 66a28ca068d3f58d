"""Loaded only as `ett.alerts`: a second copy under another name would split its state (ADR 0001)."""

if __name__ != "ett.alerts":
    raise ImportError(f"import this package as ett.alerts, not as {__name__} (docs/adr/0001-folders-at-the-root.md)")
