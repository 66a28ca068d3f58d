"""Loaded only as `ett.compile_cache`: a second copy under another name would split its state (ADR 0001)."""

if __name__ != "ett.compile_cache":
    raise ImportError(
        f"import this package as ett.compile_cache, not as {__name__} (docs/adr/0001-folders-at-the-root.md)"
    )
