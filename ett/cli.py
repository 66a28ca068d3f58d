"""The command line: verbs are loaded when they are called, so `ett --help` imports neither torch nor rich."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import click

from ett.errors import EttError
from ett.os_failure import os_failure
from ett.seams import ALIASES, VERBS, load

# Trouble with a user's disk, rights or names; any other OSError that arrives here is a bug of ours.
_USERS_TROUBLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
)


class VerbGroup(click.Group):
    """A click group whose commands are named in `ett.seams` and imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = ALIASES.get(cmd_name, cmd_name)
        if verb not in VERBS:
            return None
        command: click.Command = load(VERBS[verb][0])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, VERBS[verb][1]) for verb in sorted(VERBS)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as err:
            raise click.UsageError(f"{err.message.rstrip('.')}; `ett --help` lists the commands", ctx) from err


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from ett.versions import ett_version

        click.echo(f"ett, version {ett_version()}")
        ctx.exit()


@click.command(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Launch training jobs, see where every second went, and restore them after a failure."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit; a user's mistake ends in one clear error and a documented exit code."""
    code = run(sys.argv[1:] if argv is None else argv)
    if "ett.elastic_agent" in sys.modules:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """End as `sys.exit` does, but for the interpreter's teardown: with torch it takes half a second on an idle host and
    seconds on a busy one, for which a launch that is over would still hold what its scheduler gave it."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            stream.flush()
    os._exit(code)


def run(argv: list[str]) -> int:
    """Run one command and return its exit code: documented in docs/exit_codes.md, no traceback on a mistake."""
    try:
        result = cli.main(args=argv, prog_name="ett", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as err:
        return err.exit_code
    except click.ClickException as err:
        err.show()
        return err.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`ett ls | head`); a flush at exit must not print a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except EttError as err:
        click.echo(err.render(), err=True)
        return err.exit_code
    except OSError as err:
        if err.errno not in _USERS_TROUBLE:
            return _unexpected(err)
        told = os_failure(err, err.filename or "a file", elsewhere="$ETT_HOME, checkpoint.uri")
        click.echo(told.render(), err=True)
        return told.exit_code
    except Exception as err:  # noqa: BLE001 - the last line of defence: without it a bug of ours prints 80 lines at a user
        return _unexpected(err)


def _unexpected(err: Exception) -> int:
    trace = Path(os.environ.get("TMPDIR", "/tmp"), f"ett-crash-{os.getpid()}.txt")
    click.echo(f"error[ETT-E000]: unexpected {type(err).__name__}: {err}", err=True)
    try:
        trace.write_text("".join(traceback.format_exception(err)))
    except OSError:  # where no file can be written the terminal is the only place left
        traceback.print_exception(err)
    click.echo(f"  do        this is a bug of ett: report it with {trace}", err=True)
    return 1


if __name__ == "__main__":
    main()
