"""How long a rank may go without progress in each phase: the recipe's [recovery.hang_limits]."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ett.checkpoint.interval import parse_interval
from ett.errors import ConfigError

EXPECTED = "'off', or a time such as '90s', '10m', '1h'"
OFF = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class HangLimits:
    """Longest time in one span of these kinds; "off" for no limit. A hang after the last step counts as shutdown."""

    init: str = "30m"  # imports, device_init, process_group, rendezvous, model_build, elastic_reconfig, init
    compile: str = "1h"  # compile, and the first three steps, which may compile unseen
    restore: str = "1h"
    data: str = "1h"  # data_warmup, data_stall
    eval: str = "1h"
    ckpt_save: str = "30m"  # ckpt_save, publish
    shutdown: str = "30m"  # final_save, final_wait, publish_final, teardown, shutdown

    def __post_init__(self) -> None:
        for field in fields(self):
            seconds(getattr(self, field.name), f"recovery.hang_limits.{field.name}")

    def limit_s(self, span: str) -> float | None:
        """Return the longest time in a span of that name; None for a name that says nothing."""
        field = _FIELD_OF_SPAN.get(span)
        return None if field is None else seconds(getattr(self, field), field)


_FIELD_OF_SPAN = {
    **dict.fromkeys(
        ("imports", "device_init", "process_group", "rendezvous", "model_build", "elastic_reconfig", "init"), "init"
    ),
    **dict.fromkeys(("data_warmup", "data_stall"), "data"),
    **dict.fromkeys(("ckpt_save", "publish"), "ckpt_save"),
    **dict.fromkeys(("final_save", "final_wait", "publish_final", "teardown", "shutdown"), "shutdown"),
    "compile": "compile",
    "restore": "restore",
    "eval": "eval",
}


def seconds(text: str, field: str) -> float:
    """Return the time that `text` means; infinity for "off" and "0". Raises: ConfigError: names `field`."""
    if text.strip().lower() in ("off", "0"):
        return OFF
    interval = None
    if text.strip().lower() != "auto":
        try:
            interval = parse_interval(text, field)
        except ConfigError as err:
            raise ConfigError(f"{field} is {text!r}", expected=EXPECTED) from err
    if interval is None or interval.kind != "time":
        raise ConfigError(f"{field} is {text!r}", expected=EXPECTED)
    return interval.seconds
