"""The store's schema, one file a step, applied in order; a step that was released is never edited.

`{id}`, `{blob}` and `{name}` are what each database calls a generated key, bytes, and text that sorts by its bytes.
Every time is an integer of nanoseconds.
"""

from __future__ import annotations

from ett.store.migrations import m0001_jobs_and_events

MIGRATIONS: tuple[tuple[int, tuple[str, ...]], ...] = ((1, m0001_jobs_and_events.STATEMENTS),)
