"""Text of others on its way to a terminal: names and reasons stand in logs that anybody may have written."""

from __future__ import annotations


def shown(text: str) -> str:
    """Return the text without what steers a terminal, turns the direction of writing, or cannot be encoded."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def one_line(text: str) -> str:
    """Return the text as `shown` does, on one line: a cell of a table."""
    return shown(" ".join(text.split()))


def say(text: str, *, err: bool = False) -> None:
    """Print the text as `shown` has it; to standard error where asked."""
    import click  # not for all who import errors

    click.echo(shown(text), err=err)
