"""Save-on-update: rows as they were at a step boundary, copied while training goes on (docs/checkpoint_capture.md)."""
