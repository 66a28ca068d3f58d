"""`ett bench checkpoint`: policies simulated over traces, and one model trained under each of them on this machine."""

from __future__ import annotations

import statistics
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ett.bench import BenchResult, machine_kind
from ett.checkpoint.bench.bench_checkpoint import WORKLOAD, simulated_figures
from ett.figures import Measured as Figure
from ett.trainer.bench.policy_blocks import LEAST_TRIGGERS, Blocks, Measured
from ett.trainer.bench.policy_check import check_commits
from ett.trainer.bench.policy_job import PolicyJob, make_trace
from ett.trainer.bench.policy_lines import lines_of, order_of, summary_of
from ett.trainer.bench.policy_savers import DcpSaver, PolicyOfSaves, PolicySaver, Saver
from ett.trainer.bench.told_steps import told_steps

ADAPTIVE, AT = "adaptive", 100  # the policy and the interval of the figures
_OF_DEVICE = {
    "lost_pct_at_100_hbm": "%",
    "lost_pct_at_100_cached": "%",
    "stall_p99_steps": "steps",
    "device_staging_mib": "MiB",
}
Results = dict[int, dict[str, Measured]]  # by interval and policy


def run(quick: bool, path: Path = WORKLOAD) -> BenchResult:
    """Measure the table [checkpoint] of figures.toml.

    Raises: ThresholdMissed: a simulated row was not as trained, or a commit not as its step boundary.
    """
    workload = tomllib.loads(path.read_text())
    live, lines, live_detail = live_figures(workload["live"], quick, _say)
    simulated, detail = simulated_figures(workload, quick)
    detail = {**detail, "live": live_detail}
    if machine_kind() == "h200":
        from ett.trainer.bench.bench_device_saves import device_saves_figures

        on_device, detail["device"] = device_saves_figures(quick, _say)
        measured = {figure.name: figure for figure in on_device}
        live = [measured.get(figure.name, figure) for figure in live]
    return BenchResult(figures=[*simulated, *live], detail=detail, table=lines)


def live_figures(
    workload: dict[str, Any], quick: bool, say: Callable[[str], None]
) -> tuple[list[Figure], list[str], dict[str, Any]]:
    """Train under each policy, in turn, after commits were compared; return figures, lines for people, and details."""
    workload = {**workload, "rows": workload["quick_rows" if quick else "rows"]}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the product does by default
    try:
        with tempfile.TemporaryDirectory(prefix=".ett-bench-checkpoint-", dir=".") as name:
            results, telling, checked, num_bytes = _measured(workload, Path(name).absolute(), quick, say)
    finally:
        torch.set_num_threads(threads)
    summary = {every: {name: summary_of(each) for name, each in of.items()} for every, of in results.items()}
    detail = {"table_bytes": num_bytes, "checked": checked, "telling": telling, "intervals": summary}
    detail["order"] = order_of(results)
    return _figures(results), lines_of(results, num_bytes), detail


def _measured(
    workload: dict[str, Any], folder: Path, quick: bool, say: Callable[[str], None]
) -> tuple[Results, dict[str, Any], dict[str, Any], int]:
    trace = make_trace(workload)
    job, twin = (PolicyJob(workload, trace) for _ in range(2))
    num_bytes = job.num_table_bytes
    (folder / "check").mkdir()
    checked = check_commits(job, twin, folder / "check", workload["checked_saves"])
    say(f"{checked['saves']} commits hold every bit of their step boundaries ({checked['rows_kept']} rows were kept)")
    blocks, savers = Blocks(job, twin, folder, workload), savers_of(job, workload["max_chain"])
    results = {
        interval["batches"]: blocks.of_interval(interval, savers, say)
        for interval in workload["quick" if quick else "full"]
    }
    telling = told_steps(job, twin, trace)
    step_s = statistics.median(second for of in results.values() for each in of.values() for second in each.none_s)
    telling |= {"step_ms": round(1e3 * step_s, 3), "pct_of_a_step": round(telling["telling_ms"] / step_s / 10, 3)}
    return results, telling, checked, num_bytes


def savers_of(job: PolicyJob, max_chain: int) -> list[Saver]:
    """Args: max_chain: of `incremental`, whose blocks are a period then."""

    def ours(name: str, policy: Any, *, chain: int = 32, background: bool = False) -> PolicySaver:
        return PolicySaver(job, PolicyOfSaves(name=name, policy=policy, max_chain=chain, background=background))

    return [
        DcpSaver(job, is_async=False),
        DcpSaver(job, is_async=True),
        ours("full", "full"),
        ours("check_n_run", "check_n_run"),
        ours("incremental", "incremental", chain=max_chain),
        ours("adaptive_sync", "adaptive"),
        ours(ADAPTIVE, "adaptive", background=True),
    ]


def _figures(results: Results) -> list[Figure]:
    at_100 = results.get(AT, {}).get(ADAPTIVE)
    missing = f"no interval of {AT} batches was measured"
    lost = Figure(name="lost_pct_at_100_cpu", unit="%", samples=at_100.lost_pct if at_100 else (), reason=missing)
    if at_100 is not None:
        disk = statistics.median(at_100.disk_mb_s)
        lost = Figure(name=lost.name, unit="%", samples=lost.samples, reason=f"the disk alone writes {disk:.0f} MB/s")
    shares = {every: of[ADAPTIVE].guard_share() for every, of in results.items() if ADAPTIVE in of}
    named = ", ".join(f"{every}: {share:.2g}" for every, share in shares.items() if share is not None)
    guard = Figure(
        name="guard_share_of_captures",
        unit="",
        samples=[max(share for share in shares.values() if share is not None)],
        reason=f"the worst interval; {named}",
    )
    return [lost, guard, *_of_device(at_100)]


def _of_device(at_100: Measured | None) -> list[Figure]:
    reasons = dict.fromkeys(_OF_DEVICE, "needs a machine of kind h200")
    if at_100 is not None:
        p99, num = at_100.p99_stall_s(), len(at_100.stalls_s)
        steps = None if p99 is None else p99 / statistics.median(at_100.none_s)
        told = f"{num} triggers are too few of {LEAST_TRIGGERS}" if steps is None else f"{steps:.2f} of {num} triggers"
        reasons["stall_p99_steps"] += f"; with rows on the host here: {told}"
    return [Figure(name=name, unit=unit, reason=reasons[name]) for name, unit in _OF_DEVICE.items()]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
