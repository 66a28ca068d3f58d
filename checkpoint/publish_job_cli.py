"""`ett publish job`: what the end of a job begins by itself, where its recipe has [publish]; the same by hand."""

from __future__ import annotations

import os

import click

from ett.checkpoint.cli_output import as_json_option
from ett.checkpoint.progress import progress
from ett.checkpoint.published_job import PublishedJob
from ett.checkpoint.published_text import show_published
from ett.job_folder import ett_home, find_job


@click.command("job", short_help="Publish a job's newest commit as the [publish] of its recipe says.")
@click.argument("job", metavar="JOB")
@as_json_option
def job_command(job: str, *, as_json: bool) -> None:
    """Publish the newest commit of JOB that verifies, as [publish] of its recipe says.

    `ett launch` starts this when the job has succeeded and its ranks are gone. A store that does not answer is asked
    again, `publish.attempts` times in all, with growing waits. Exit codes are those of `ett publish commit`.
    """
    published = PublishedJob.of(find_job(ett_home(os.environ), job).path)
    show_published(published.publish(progress(as_json)), published.open(), as_json)
