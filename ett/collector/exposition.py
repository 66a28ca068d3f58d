"""The text that Prometheus scrapes."""

from __future__ import annotations

from prometheus_client.exposition import choose_encoder

from ett.collector.own_figures import OwnFigures


def render(figures: OwnFigures, accept: str) -> tuple[bytes, str]:
    """Return the exposition in the form that the Accept header asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(figures.registry), content_type
