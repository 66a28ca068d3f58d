"""A process with a share of the campaign: argv = what to do as JSON; prints the tallies of its cells as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from ett.checkpoint.bench.faults.campaign import Campaign, scratch_folder
from ett.checkpoint.bench.faults.surroundings import surroundings
from ett.errors import ThresholdMissed


def in_processes(seed: int, per_cell: int) -> list[dict[str, Any]]:
    """Run the campaign, a share of its cells on each core, and return the tallies.

    Raises: ThresholdMissed: a process ended before it was done.
    """
    shares = len(os.sched_getaffinity(0))
    asked = [{"seed": seed, "per_cell": per_cell, "share": [number, shares]} for number in range(shares)]
    command = [sys.executable, "-m", "ett.checkpoint.bench.faults.fault_process"]
    processes = [
        subprocess.Popen([*command, json.dumps(share)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for share in asked
    ]
    tallies: list[dict[str, Any]] = []
    try:
        for process in processes:
            output, errors = process.communicate()
            if process.returncode:
                raise ThresholdMissed(f"a process of the campaign ended with {process.returncode}: {errors[-2000:]}")
            tallies += json.loads(output)
    finally:
        for process in processes:
            process.terminate()  # nothing, if it has ended
            process.wait()
    return sorted(tallies, key=lambda tally: (tally["family"], tally["kind"], tally["point"]))


def main() -> None:
    asked = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started and written goes with it
    with scratch_folder() as scratch:
        with surroundings(scratch) as around:
            tallies = Campaign(asked["seed"], scratch, around).run(asked["per_cell"], share=tuple(asked["share"]))
    print(json.dumps([tally.as_json() for tally in tallies]))


if __name__ == "__main__":
    main()
