"""Effective training time for large recommendation models: measure it exactly, and win the rest back."""
