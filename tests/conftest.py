"""Hypothesis: an example may take as long as it does, for a busy machine makes a fast one slow."""

from hypothesis import settings

settings.register_profile("ett", deadline=None)
settings.load_profile("ett")
