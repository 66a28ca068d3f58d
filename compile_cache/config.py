"""What a recipe may say of compiling: the section [compile]; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from ett.errors import ConfigError
from ett.store_uri import check_uri


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileConfig:
    # Compile the dense part of dlrm and dcn_v2 (torch.compile). Other bits than without, the same ones in every run.
    dense: bool = False
    cache: bool = True  # keep what was compiled, and begin with it: local first, then at `uri`
    uri: str = ""  # a folder or fsspec URL that hosts share; empty: only compile-cache in $ETT_HOME of each host
    # A file with the key that artefacts are signed with, at least 16 bytes; $ETT_COMPILE_CACHE_KEY goes first. Without
    # either one is made in $ETT_HOME.
    key_file: str = ""
    max_bytes: int = 4 << 30  # of the local store: what was used longest ago goes
    max_pack_bytes: int = 512 << 20  # of one pack, unpacked; a larger one is neither published nor loaded
    fetch_timeout_s: float = 60.0  # longest wait for a store at the start; then this start compiles
    # Longest wait of the other ranks for what rank 0 compiles, at most half of train.comm_timeout_s; then each compiles
    # for itself.
    wait_s: float = 600.0

    def __post_init__(self) -> None:
        check_uri(self.uri, "compile.uri")
        for name in ("max_bytes", "max_pack_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"compile.{name} is {getattr(self, name)}", expected="at least 1 byte")
        for name in ("fetch_timeout_s", "wait_s"):
            if not 0.0 <= getattr(self, name) < 1e6:
                raise ConfigError(f"compile.{name} is {getattr(self, name)}", expected="seconds, 0 to 1,000,000")
