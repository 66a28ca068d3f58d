"""Where, how often and how many checkpoints: the recipe's [checkpoint] section; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ett.checkpoint.interval import parse_interval
from ett.checkpoint.migrate_config import MigrateConfig
from ett.checkpoint.policy.save_policy import parse_policy
from ett.errors import ConfigError
from ett.store_uri import check_uri

SMALLEST_STAGING = 32 << 20
SMALLEST_MAX_LIVE = 1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    uri: str = ""  # a folder, s3://bucket/folder or another fsspec URL; "" is `checkpoints` in the job's folder
    buffer_dir: str = ""  # local disk that a remote uri is uploaded from; "" is `buffer` in the job's folder
    buffer_bytes: int = 64 << 30  # of each rank, on their way; a save waits (and counts as stall) for room
    buffer_wait_s: float = 120.0  # longest that a save waits for that room; then it is given up, as one that failed
    peer_address: str = ""  # of this host: others read from its buffer what they restore; "" serves nothing
    # Requests of each rank under way at once while it restores from a remote uri: each needs 8 to 16 MiB of memory.
    restore_reads: int = 32
    interval: str = "auto"  # "auto" (docs/checkpoint.md#when), "500 steps", "90s", "6m"
    # What a save writes (docs/checkpoint_policy.md): of tables that say what changes less than every row, or "full".
    policy: Literal["full", "adaptive", "incremental", "differential", "check_n_run"] = "adaptive"
    max_chain: int = 32  # saves between two of every row, at most
    # Most bytes that a commit lists of a table, over those of its rows: where changes would bring them above, the whole
    # table is written again, so that what a restore reads is bounded. 0: whenever the policy finds it cheapest.
    max_live: float = 0.0
    # Write while training goes on (docs/checkpoint_capture.md): rows that change before they are written are kept.
    # Tables that do not say what changes are written while it waits.
    background: bool = True
    staging_bytes: int = 512 << 20  # of each rank, for those rows; where it is full training waits (counts as stall)
    # Of each rank's device: half for such rows of tables that are there, on their way, half for dense tensors.
    device_staging_bytes: int = 384 << 20
    # Lossy: float32 weights of tables in so many bits an element, optimizer states as they are; 0 loses nothing.
    quantise: Literal[0, 4, 8] = 0
    quantise_tables: dict[str, Literal[0, 4, 8]] = field(default_factory=dict)  # by name, for tables that differ
    keep_last: int = 3  # newest commits kept; with 1 there is none to fall back to
    allow_foreign: bool = False  # resume by itself from what another job has saved, and go on in its folder
    migrate: MigrateConfig = field(default_factory=MigrateConfig)  # what changes where `ett launch --from` begins
    # A save that is due and holds training for longer is counted as over budget; one that is written beside training,
    # and would make it wait for longer, is skipped, three times in a row at most.
    stall_budget_s: float = 2.0

    def __post_init__(self) -> None:
        check_uri(self.uri)
        parse_interval(self.interval)
        parse_policy(self.policy, self.max_chain)
        if self.staging_bytes < SMALLEST_STAGING:
            raise ConfigError(
                f"checkpoint.staging_bytes is {self.staging_bytes}",
                expected=f"at least {SMALLEST_STAGING}: some rows of each table",
            )
        if self.device_staging_bytes < SMALLEST_STAGING:
            raise ConfigError(
                f"checkpoint.device_staging_bytes is {self.device_staging_bytes}",
                expected=f"at least {SMALLEST_STAGING}: some rows of each table",
            )
        _check_bits("quantise", self.quantise)
        for table, bits in self.quantise_tables.items():
            _check_bits(f"quantise_tables.{table}", bits)
        if self.buffer_bytes < 1:
            raise ConfigError(f"checkpoint.buffer_bytes is {self.buffer_bytes}", expected="at least 1")
        if not self.buffer_wait_s > 0:
            raise ConfigError(f"checkpoint.buffer_wait_s is {self.buffer_wait_s}", expected="seconds above zero")
        if self.max_live and self.max_live < SMALLEST_MAX_LIVE:
            raise ConfigError(
                f"checkpoint.max_live is {self.max_live}", expected=f"at least {SMALLEST_MAX_LIVE}, such as 1.5, or 0"
            )
        if not 1 <= self.restore_reads <= 256:
            raise ConfigError(f"checkpoint.restore_reads is {self.restore_reads}", expected="1 to 256")
        if self.keep_last < 1:
            raise ConfigError(f"checkpoint.keep_last is {self.keep_last}", expected="at least 1")
        if not self.stall_budget_s > 0:
            raise ConfigError(
                f"checkpoint.stall_budget_s is {self.stall_budget_s}",
                expected="seconds above zero",
            )


def _check_bits(name: str, bits: object) -> None:
    if bits not in (0, 4, 8):
        raise ConfigError(f"checkpoint.{name} is {bits!r}", expected="8 or 4 (bits), or 0 (exact)")
