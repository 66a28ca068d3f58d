"""`ett errors CODE`: one page for each code that an error can carry; a test holds the two together."""

from __future__ import annotations

import textwrap

import click

from ett.errors import NotFound
from ett.section import nearest

# code -> (title, exit code, page). The first letter says where to look: U command line, F configuration, D data,
# N name, P rights, S store, L launch, C checkpoint, T target, E a bug of ours.
PAGES: dict[str, tuple[str, int, str]] = {
    "C008": (
        "stored data does not match its checksum or identity",
        8,
        "A file was changed, cut, swapped or written by a newer version. Nothing of it was used. `ett "
        "checkpoint verify JOB` names every damaged file. A restore without --step falls back to the newest "
        "checkpoint that is whole, and says so.",
    ),
    "C009": (
        "two records claim one place in a job's log",
        8,
        "A record is known by job, file and sequence number, and another with other bytes is stored under the same "
        "three. The first was kept, the other was left out, and all else was stored. Usually two jobs share a name, or "
        "a log was edited: ingest the other under a name of its own, `ett ingest NAME --events DIR`.",
    ),
    "C010": (
        "there is no checkpoint",
        10,
        "The job ended before its first commit, or checkpoint.uri names another folder (`ett checkpoint ls "
        "JOB`). Start it from the beginning: `ett launch --job JOB`, or `--resume never`.",
    ),
    "C011": (
        "a pack of the compile cache is damaged, or signed with another key",
        8,
        "Nothing of it was used: to load compiled code is to run it, so every byte has to be as this key signed it. "
        "What it has is compiled again, and training goes on. Hosts that share compile.uri need one key: "
        "$ETT_COMPILE_CACHE_KEY or compile.key_file. `ett compile-cache verify` names all such packs, "
        "`ett compile-cache gc --damaged` removes them.",
    ),
    "C012": (
        "a pack of the compile cache is not what its name says",
        8,
        "It is signed with this cache's key, but for other code or another machine, has a file that no cache of "
        "torch's has, or is larger than compile.max_pack_bytes. Nothing of it was used, and training goes on. Somebody "
        "who has the key put it there: find out who, and give the cache a new key if it was nobody you know.",
    ),
    "C122": (
        "the state could not be restored",
        122,
        "Checkpoints exist and none could be loaded: all are damaged, or the model's tables and shapes differ "
        "from those that were saved. Training never starts over silently on top of them. `ett checkpoint "
        "verify JOB` and `ett checkpoint show JOB` show what is there; `--resume never` starts anew.",
    ),
    "D001": (
        "a line of the input is malformed",
        3,
        "The message names file, line and field. Correct the line, or allow some: data.max_bad_lines counts "
        "and skips that many before it stops. The default is 0, since a wrong separator makes every line bad.",
    ),
    "E000": (
        "ett itself failed",
        1,
        "A bug. The message names a file with the full trace: report it with that file. A running job is not "
        "affected by a failing command; `ett launch` ends its workers first.",
    ),
    "F001": (
        "a configuration value is not allowed",
        3,
        "The message names the key, its value and what would be right. `ett config show RECIPE.toml --origin` "
        "prints every value and where it came from: --set, $ETT_SECTION_KEY, the recipe, the site file or the "
        "default.",
    ),
    "F002": (
        "unknown section or key",
        3,
        "A recipe's keys are the names of the configuration fields, and an unknown one is refused, so that a "
        "typing error never trains with a default. The message suggests the nearest name.",
    ),
    "F003": (
        "a configuration value has the wrong type",
        3,
        'TOML keeps text in quotes and numbers without: `interval = "500 steps"`, `keep_last = 3`.',
    ),
    "F004": (
        "a path, uri or data source cannot be used",
        3,
        "The key names a place or a source that does not fit: no folder, an unknown scheme, nothing at all, "
        "or input that is not what the job was saved with. Local paths and file:// uris always work.",
    ),
    "F006": (
        "an optional part of ett is not installed",
        3,
        "The command needs packages that only some users want: the message names the extra. In the environment that "
        "ett runs in: pip install 'ett[otel]'.",
    ),
    "F007": (
        "the store lets a second writer replace what exists",
        3,
        "A commit is a name that can be created once. At start the same name was created twice there, and the second "
        "was not refused (some S3 servers ignore If-None-Match), or the file system cannot create in one step: two "
        "processes of a job could overwrite each other's commits unseen. Set checkpoint.uri to another store. Packs of "
        "the compile cache are created once as well: the same holds for compile.uri.",
    ),
    "F008": (
        "another job's checkpoint does not fit this model",
        3,
        "`ett launch --from` takes over every table and dense tensor that is the same in both; what is not must be "
        "named in the recipe's [checkpoint.migrate]: add, drop, rename, resize for tables, reset for dense tensors. "
        "The message has the lines to add. `ett launch --dry-run --from JOB RECIPE.toml` shows the plan and starts "
        "nothing.",
    ),
    "L007": (
        "somebody else holds it",
        7,
        "The job has a running supervisor, which the message names, or another process wrote what this one "
        "was about to. Two supervisors of one job would write one set of checkpoints. Wait for it, or end it "
        "with SIGTERM.",
    ),
    "L008": (
        "this process was fenced off from its checkpoints",
        7,
        "A newer process of the job opened the checkpoint folder, so this one may no longer commit: it was "
        "believed dead, or two jobs share one checkpoint.uri. Nothing of the newer one was touched.",
    ),
    "L009": (
        "processes of an earlier attempt cannot be ended",
        7,
        "They hang in the kernel (a device or a network disk), and a new attempt beside them could write the "
        "same checkpoints. Free the device or restart the host, then launch again.",
    ),
    "L010": (
        "this host cannot run the job",
        121,
        "Before a restart the host is looked at: room and rights on its disks, memory, its devices, the store of the "
        "checkpoints. What the message names was not as it must be for recovery.health.wait (5 minutes), so no restart "
        "was used up on it. Mend that, or launch the job on another host: it goes on from its newest checkpoint.",
    ),
    "L120": (
        "the job was refused before it started",
        120,
        "What the launch needs is not there. Nothing was started, nothing was written but the message.",
    ),
    "L121": (
        "the restart policy gave up",
        121,
        "Restarts were allowed and none follows: all are spent, the same error of the program came twice in a "
        "row, or several attempts in a row made no new checkpoint. The message has the program's own exit "
        "code and the file with its last lines. Mend the cause, then `ett launch --job JOB` goes on from the "
        "newest checkpoint, or from the beginning where the program saved none.",
    ),
    "N001": (
        "not found",
        4,
        "A job, file or checkpoint of that name is not there. `ett ls` lists jobs; $ETT_HOME (default ./.ett) "
        "is where they are looked for, so the working folder matters.",
    ),
    "N002": (
        "the name is ambiguous",
        4,
        "Several jobs begin like that. Give more of the name; `ett ls` shows them all.",
    ),
    "P001": (
        "access refused",
        5,
        "The operating system or the store did not let this user read or write there. Give the user access, "
        "or choose another folder ($ETT_HOME, checkpoint.uri).",
    ),
    "P002": (
        "an OTLP receiver refused the credentials",
        5,
        "It answered 401 or 403. What it wants as headers goes into $OTEL_EXPORTER_OTLP_HEADERS (name=value, "
        "percent-encoded, commas between); ett never writes them anywhere. The job is not affected.",
    ),
    "P003": (
        "a store refused the credentials",
        5,
        "The keys are wrong, expired, missing, or lack a right: list, read, write and delete below checkpoint.uri, or "
        "compile.uri, are needed. Keys that expire are read anew, from where botocore finds them ($AWS_ACCESS_KEY_ID, "
        "~/.aws/credentials, the instance's role), every five minutes and when the store says so. Nothing was lost.",
    ),
    "S001": (
        "a store or server did not answer",
        6,
        "It may answer later; nothing was lost. Check that it runs and that this host reaches it, then try again.",
    ),
    "S002": (
        "the disk is full",
        6,
        "The checkpoint was given up and what it had written was removed; older ones are whole. Make room, or "
        "lower checkpoint.keep_last.",
    ),
    "S003": (
        "reading or writing failed",
        6,
        "The disk or network disk reported an error. Older checkpoints are whole. Check the device, then try again.",
    ),
    "S004": (
        "another rank is gone",
        6,
        "A rank waited for another that ended or does not answer, so this one ended too: it is a consequence, "
        "not the cause. The supervisor names the rank that ended first; its log is in JOB_DIR/logs/ATTEMPT.",
    ),
    "S005": (
        "uploads of checkpoints are behind",
        6,
        "Commits wait in the buffer on the local disk (checkpoint.buffer_dir), and the remote store takes them too "
        "slowly or not at all. What was committed there is whole, and the job's next start on the same host goes on "
        "sending it. Check that the store answers; where it is only slow, save less often (checkpoint.interval) or "
        "give more room (checkpoint.buffer_bytes). A save waits checkpoint.buffer_wait_s for that room; then it is "
        "given up and training goes on, and what it would have saved is in the next one.",
    ),
    "S006": (
        "an OTLP receiver did not take the telemetry",
        6,
        "It did not answer, refused the data, or rejected all of it. Nothing of the job is lost: its event log has "
        "everything, and `ett timeline JOB --otlp URL` sends the same spans again. The URL is the receiver's base "
        "over HTTP (often port 4318, not 4317, which is gRPC). 429, 502, 503 and 504 were retried already.",
    ),
    "S007": (
        "a save was given up so as not to hold training",
        6,
        "A save that is written beside training made it wait for longer than checkpoint.stall_budget_s: the one before "
        "had not ended when the next was due, or the memory for rows that change meanwhile (checkpoint.staging_bytes) "
        "was full. What it would have saved is in the next one. After three in a row the next may hold training, two "
        "minutes at most. Find out why the store takes saves so slowly, save less often (checkpoint.interval), or "
        "raise one of the two. Older checkpoints are whole.",
    ),
    "T009": (
        "a target was missed",
        9,
        "A benchmark or `--fail-under` measured less than it asks for. The output says which figure, and by how much.",
    ),
    "U001": (
        "the command line is wrong",
        2,
        "The message shows what was understood. Every command explains itself: --help.",
    ),
}


@click.command()
@click.argument("code", required=False)
def command(code: str | None) -> None:
    """Explain the error CODE, such as ETT-L121; without one, list all codes."""
    if code is None:
        for name, (title, exit_code, _) in PAGES.items():
            click.echo(f"ETT-{name}  exit {exit_code:<4} {title}")
        return
    name = code.upper().removeprefix("ETT-")
    if name not in PAGES:
        raise NotFound(f"there is no error code {code!r}", expected=nearest(name, PAGES))
    title, exit_code, page = PAGES[name]
    click.echo(f"ETT-{name}: {title} (exit code {exit_code})\n\n{textwrap.fill(page, 100)}")
