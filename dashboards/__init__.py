"""Loaded only as `ett.dashboards`: a second copy under another name would split its state (ADR 0001)."""

if __name__ != "ett.dashboards":
    raise ImportError(
        f"import this package as ett.dashboards, not as {__name__} (docs/adr/0001-folders-at-the-root.md)"
    )
