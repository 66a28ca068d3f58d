"""A process that takes cells of the campaign, as all do, until none is left: argv = what to do as JSON.

It prints the tallies of its cells as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ett.checkpoint.bench.faults.campaign import Campaign, Work, scratch_folder
from ett.checkpoint.bench.faults.protocol_points import Amount
from ett.checkpoint.bench.faults.surroundings import surroundings
from ett.errors import ThresholdMissed

_NUMBER_BYTES = 4
_MOST_CELLS = 8192  # as many numbers fit into a pipe (64 KiB) before anybody reads


def in_processes(seed: int, amount: Amount) -> list[dict[str, Any]]:
    """Run the campaign, a process on each core, and return the tallies.

    Raises: ThresholdMissed: a process ended before it was done, or had other cells than the others.
    """
    queue = _queue_of_numbers()
    asked = {"seed": seed, "per_point": amount.per_point, "least": amount.least, "queue": queue}
    command = [sys.executable, "-m", "ett.checkpoint.bench.faults.fault_process", json.dumps(asked)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=(queue,))
        for _ in os.sched_getaffinity(0)
    ]
    os.close(queue)
    answers: list[dict[str, Any]] = []
    try:
        for process in processes:
            output, errors = process.communicate()
            if process.returncode:
                raise ThresholdMissed(f"a process of the campaign ended with {process.returncode}: {errors[-2000:]}")
            answers.append(json.loads(output))
    finally:
        for process in processes:
            process.terminate()  # nothing, if it has ended
            process.wait()
    if any(answer["work"] != answers[0]["work"] for answer in answers):
        raise ThresholdMissed("the campaign's processes do not agree on what there is to do")
    tallies = [tally for answer in answers for tally in answer["tallies"]]
    return sorted(tallies, key=lambda tally: (tally["family"], tally["kind"], tally["point"]))


def _queue_of_numbers() -> int:
    """Return the end of a pipe from which every process reads the numbers of its cells, one after the other."""
    queue, filled = os.pipe()
    os.write(filled, b"".join(number.to_bytes(_NUMBER_BYTES) for number in range(_MOST_CELLS)))
    os.close(filled)
    return queue


def _taken(work: list[Work], queue: int) -> Iterator[Work]:
    """Yield the cells that this process is the first to take; those of S3 first: they take longest."""
    assert len(work) <= _MOST_CELLS
    while (number := int.from_bytes(os.read(queue, _NUMBER_BYTES))) < len(work):
        yield work[-1 - number]


def main() -> None:
    asked = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started and written goes with it
    with scratch_folder() as scratch:
        with surroundings(scratch) as around:
            campaign = Campaign(asked["seed"], scratch, around)
            work = campaign.work(Amount(per_point=asked["per_point"], least=asked["least"]))
            tallies = campaign.run(_taken(work, asked["queue"]))
    listed = [[part.family.name, part.cell.kind, part.cell.point, part.count] for part in work]
    print(json.dumps({"work": listed, "tallies": [tally.as_json() for tally in tallies]}))


if __name__ == "__main__":
    main()
