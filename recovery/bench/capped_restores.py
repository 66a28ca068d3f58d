"""The figures of restores from a store that caps each connection: ours beside one file and one connection at a time.

A ratio means something only where the others are held by the cap and not by this machine. So what one connection, and
as many as ours, get through the proxy when nobody looks at the bytes is measured in turn with them.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from urllib.parse import quote, urlsplit

from ett.checkpoint.bench.capped_store import capped_store
from ett.checkpoint.bench.seaweed import s3_options
from ett.checkpoint.bench.spent import spent
from ett.checkpoint.read_plan import REMOTE_READS
from ett.checkpoint.s3_store import MOST_READS, S3Store
from ett.checkpoint.store import Store
from ett.checkpoint.table_reader import REMOTE_READ_BYTES
from ett.checkpoint.worker_threads import in_threads
from ett.errors import ThresholdMissed
from ett.figures import Measured
from ett.recovery.bench.restore_bench import OURS, Detail, Reader, RestoreBench
from ett.recovery.bench.zipf_job import HeldCommit

BASELINES = ("check_n_run", "incremental")
# Of the cap, that one connection gets whose bytes nobody looks at: below, this machine holds it; above, nobody caps.
LEAST_OF_CAP, MOST_OF_CAP = 0.9, 1.05
LEAST_OF_PLAIN = 0.7  # that the others get of that: below, the reader is slow with one connection, and ours looks fast
_PLAIN_PIECES = 8  # that one connection reads


@dataclass(slots=True)
class _Policy:
    """Restores of a policy's commits. By commit: seconds of each, and bytes of rows that one read."""

    commits: list[HeldCommit]
    stores: list[Store]
    reads: int
    seconds: list[list[float]] = field(default_factory=list)
    read_bytes: list[int] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Return bytes a second of each restore."""
        return [num / s for num, taken in zip(self.read_bytes, self.seconds, strict=True) for s in taken]


def capped_figures(bench: RestoreBench) -> tuple[list[Measured], Detail]:
    """Raises: ThresholdMissed: a restore brought other bits, or a connection got more than the cap."""
    held = {policy: _held_commits(bench, policy) for policy in (OURS, *BASELINES)}
    reader, cap = Reader(bench.model()), bench.plan["bytes_per_s"]
    plain: dict[int, list[float]] = {1: [], REMOTE_READS: []}
    with capped_store(bench.folder, cap) as url:
        policies = {
            name: _Policy(
                commits, [_bucket(url, bench, one, name) for one in commits], REMOTE_READS if name == OURS else 1
            )
            for name, commits in held.items()
        }
        for number in range(len(bench.sized("restores"))):
            for name, policy in policies.items():
                reader.check(name, policy.commits[number], policy.stores[number], reads=policy.reads)
                policy.seconds.append([])
                policy.read_bytes.append(0)
            bench.say(f"restores of step {held[OURS][number].commit.step} through the proxy bring every bit")
            for turn in range(bench.sized("rounds")):
                for policy in list(policies.values())[:: -1 if turn % 2 else 1]:
                    taken = reader.restore(policy.stores[number], reads=policy.reads)
                    policy.seconds[number].append(taken.seconds)
                    policy.read_bytes[number] = reader.read_bytes
                for connections, rates in plain.items():
                    rates.append(_plain_rate(url, bench, held[OURS][number], connections))
    detail: Detail = {name: _detail_of(policy) for name, policy in policies.items()}
    detail["plain_mb_s"] = {connections: [round(rate / 1e6) for rate in rates] for connections, rates in plain.items()}
    return [_figure(name, policies, cap, plain) for name in BASELINES], detail


def _figure(name: str, policies: Mapping[str, _Policy], cap: float, plain: Mapping[int, Sequence[float]]) -> Measured:
    """Args: plain: by number of connections, bytes a second when nobody looks at them."""
    theirs, ours = policies[name], policies[OURS]
    fastest = max([*theirs.rates(), *plain[1]])
    if fastest > MOST_OF_CAP * cap:
        raise ThresholdMissed(
            f"one connection read {fastest / 1e6:.0f} MB/s", expected=f"the proxy's cap of {cap / 1e6:.0f} MB/s"
        )
    rate, one = statistics.median(theirs.rates()), statistics.median(plain[1])
    mine, many = statistics.median(ours.rates()), statistics.median(plain[REMOTE_READS])
    seen = (
        f"{cap / 1e6:.0f} MB/s a connection (a proxy on the loopback); theirs: {name}'s commits, one file and one "
        f"connection at a time, {rate / 1e6:.0f} MB/s; ours {mine / 1e6:.0f} MB/s; who looks at no byte gets "
        f"{one / 1e6:.0f} with 1 connection, {many / 1e6:.0f} with {REMOTE_READS}"
    )
    figure = f"restore_vs_{name}_capped_store"
    if one < LEAST_OF_CAP * cap:
        return Measured(name=figure, unit="", reason=f"this machine is too busy for the cap to hold anybody: {seen}")
    if rate < LEAST_OF_PLAIN * one:
        return Measured(name=figure, unit="", reason=f"it is not the cap that holds the others: {seen}")
    samples = [
        their_s / our_s
        for of_them, of_us in zip(theirs.seconds, ours.seconds, strict=True)
        for their_s, our_s in zip(of_them, of_us, strict=True)
    ]
    return Measured(name=figure, unit="", samples=samples, reason=seen)


def _detail_of(policy: _Policy) -> Detail:
    return {
        "steps": [each.commit.step for each in policy.commits],
        "mb": [round(each.commit.num_bytes / 1e6) for each in policy.commits],
        "read_mb": [round(num / 1e6) for num in policy.read_bytes],
        "seconds": [[round(value, 3) for value in values] for values in policy.seconds],
    }


def _held_commits(bench: RestoreBench, policy: str) -> list[HeldCommit]:
    more = {"max_chain": bench.plan["max_chain"]} if policy == "incremental" else {}
    job, held = bench.job(policy, **more), []
    for number in range(1, bench.plan["checkpoints"] + 1):
        job.checkpoint()
        if number in bench.sized("restores"):
            held.append(job.hold(bench.folder / f"{policy}-{number}"))
    job.close()
    return held


def _bucket(url: str, bench: RestoreBench, held: HeldCommit, policy: str) -> Store:
    uri = f"s3://bench/{held.folder.relative_to(bench.folder)}"
    return S3Store(uri, options=s3_options(url), reads=MOST_READS if policy == OURS else 1)


def _plain_rate(url: str, bench: RestoreBench, held: HeldCommit, connections: int) -> float:
    """Return the bytes a second that plain requests for pieces of the same files get, as large as a restore's."""
    address, root = urlsplit(url), held.folder.relative_to(bench.folder)
    own, opened = threading.local(), []
    pieces = [
        (f"/bench/{root}/{quote(file.path)}", first, min(file.bytes, first + REMOTE_READ_BYTES))
        for file in held.commit.stored_files()
        for first in range(0, file.bytes, REMOTE_READ_BYTES)
    ]

    if connections == 1:
        pieces = pieces[:_PLAIN_PIECES]

    def read(piece: tuple[str, int, int]) -> int:
        path, first, end = piece
        if not hasattr(own, "connection"):
            own.connection = HTTPConnection(str(address.hostname), address.port)
            own.memory = memoryview(bytearray(REMOTE_READ_BYTES))
            opened.append(own.connection)
        own.connection.request("GET", path, headers={"Range": f"bytes={first}-{end - 1}"})
        answer, done = own.connection.getresponse(), 0
        while count := answer.readinto(own.memory[done:]):
            done += count
        return done

    counts: list[int] = []
    taken = spent(lambda: counts.extend(in_threads(pieces, read, connections)))
    for connection in opened:
        connection.close()
    if sum(counts) != (asked := sum(end - first for _, first, end in pieces)):
        raise ThresholdMissed(f"plain reads brought {sum(counts)} bytes of {asked}")
    return sum(counts) / taken.seconds
