"""docs/cli.txt holds the --help of every command; `python -P` on this file writes it anew.

-P: with the folder of this file on the path, `tests/ett` would stand before `ett`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
from click.testing import CliRunner

from ett.cli import cli

EXPECTED = Path(__file__).parents[1] / "docs" / "cli.txt"


def help_texts() -> str:
    context = click.Context(cli, info_name="ett", terminal_width=100, max_content_width=100)
    pages = [f"$ ett --help\n{CliRunner().invoke(cli, ['--help'], prog_name='ett', terminal_width=100).output}"]
    for verb in cli.list_commands(context):
        command = cli.get_command(context, verb)
        assert command is not None
        pages += _pages(command, verb)
    return "\n".join(pages)


def _pages(command: click.Command, path: str) -> list[str]:
    args = [*path.split(), "--help"]
    pages = [f"$ ett {path} --help\n{CliRunner().invoke(cli, args, prog_name='ett', terminal_width=100).output}"]
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            pages += _pages(command.commands[name], f"{path} {name}")
    return pages


def test_docs_show_the_help_of_every_command() -> None:
    # In a process of its own: click keeps the help option that a command was first called with, by any test.
    done = subprocess.run([sys.executable, "-P", __file__, "--print"], capture_output=True, text=True, check=True)
    assert done.stdout == EXPECTED.read_text(), f"{sys.executable} -P {__file__} writes it anew"


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(help_texts())
    else:
        EXPECTED.write_text(help_texts())
