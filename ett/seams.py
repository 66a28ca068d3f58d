"""The one table where `ett/` names what lives above it, as strings: loading this imports nothing.

A verb is (implementation, one line of help); a seam is an implementation of a protocol that `ett/` defines.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

VERBS: dict[str, tuple[str, str]] = {
    "bench": ("ett.bench:command", "Print figures with their targets, from a benchmark that checks itself first."),
    "checkpoint": ("ett.checkpoint.cli:group", "List, verify, keep, rewrite and export checkpoints (alias: ckpt)."),
    "collect": ("ett.collector.collect_cli:command", "Serve a collector: events over HTTP in, Prometheus metrics out."),
    "compare": ("ett.comparison_cli:command", "Say what made two jobs differ, in seconds and in points of ETT."),
    "compile-cache": (
        "ett.compile_cache.cli:group",
        "List, verify, fill and bound what torch.compile made.",
    ),
    "config": ("ett.recipe_cli:group", "Show the resolved configuration and where each value came from."),
    "data": ("ett.trainer.data.cli:group", "Generate training data in a public format."),
    "errors": ("ett.error_pages:command", "Explain an error code."),
    "explain": ("ett.explain:command", "Print every interval of a job with its rule and its evidence."),
    "export": ("ett.store.export_cli:command", "Write jobs as JSONL, as a trace for Perfetto, or as Parquet."),
    "ingest": ("ett.store.ingest_cli:command", "Take jobs' logs into the job store: only what is new."),
    "launch": ("ett.launch:command", "Run a recipe, a script or a command under the supervisor."),
    "ls": ("ett.job_list:command", "List jobs, newest first."),
    "publish": ("ett.checkpoint.publish_cli:command", "Make a serving artefact of a checkpoint, without the job."),
    "report": ("ett.report_cli:command", "Say where every second of a job went."),
    "sync": ("ett.collector.sync_cli:command", "Send event logs to a collector, at least once."),
    "timeline": ("ett.timeline_cli:command", "Draw a job's attempts on one time axis, as text, SVG or trace."),
    "whatif": ("ett.whatif_cli:command", "Say what a job would have been with a fix, by playing it again."),
    "restore": ("ett.recovery.cli:command", "Show what a restore would load, then launch the job again from it."),
}
ALIASES = {"ckpt": "checkpoint"}

SEAMS: dict[str, str] = {
    "checkpoint_interval": "ett.checkpoint.interval:parse_interval",
    "recipe_sections": "ett.trainer.recipe:SECTIONS",
    "recipe_check": "ett.trainer.recipe:check",
    "recipe_main": "ett.trainer.main",
    "recipe_worker": "ett.trainer.main:run",
    "spare_imports": "ett.trainer.begun:import_ahead",
    "host_checks": "ett.recovery.host_checks:check_host",
    "hang_policy": "ett.recovery.hang_policy:find_hang",
    "restart_policy": "ett.recovery.restart_policy:decide",
    "commit_source": "ett.recovery.lineage:find_source",
    "migration": "ett.trainer.migration:plan_migration",
    "compile_prewarm": "ett.trainer.prewarm:prewarm",
    "fault_plan": "ett.recovery.fault_plan:FaultPlan",
    "faults": "ett.recovery.armed_faults:arm",
}

BENCHES: dict[str, str] = {
    "accounting": "ett.bench_accounting:run",
    "checkpoint": "ett.trainer.bench.bench_policies:run",
    "compile": "ett.trainer.bench.bench_compile:run",
    "core": "ett.trainer.bench.bench_core:run",
    "ett": "ett.trainer.bench.bench_ett:run",
    "faults": "ett.checkpoint.bench.bench_faults:run",
    "recovery": "ett.trainer.bench.bench_recovery:run",
    "shutdown": "ett.trainer.bench.bench_shutdown:run",
    "store": "ett.checkpoint.bench.bench_store:run",
    "telemetry": "ett.bench_telemetry:run",
}
RESUMABLE_BENCHES = frozenset({"ett"})  # they take `--resume FILE`


def load(target: str) -> Any:
    """Import "package.module:name" and return the object; the only dynamic import of `ett/`."""
    module, _, name = target.partition(":")
    loaded = import_module(module)
    return getattr(loaded, name) if name else loaded
