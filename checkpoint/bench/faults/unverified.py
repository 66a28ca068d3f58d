"""The reader without what it verifies: no option of the product, only a patch, so that the campaign sees what it stops.

Sizes, layouts and JSON still have to make sense: what a reader needs in order to read at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from ett.checkpoint import (
    commit,
    commit_log,
    dense_document,
    dense_files,
    restore,
    restore_checks,
    segment_reader,
)
from ett.checkpoint.canonical_json import unchecked_fields


class _Agreeable(str):
    """Equal to whatever it is compared with."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@contextmanager
def unverified() -> Iterator[None]:
    """Switch checksums off: of blocks, padding, headers, indexes, records, fragments, tables and dense files."""
    with ExitStack() as patches:
        for name in ("_check_block", "_check_padding", "check_whole_hash"):
            patches.enter_context(patch.object(segment_reader.Segment, name, _nothing))
        patches.enter_context(patch("ett.checkpoint.segment_reader.zlib.crc32", lambda data: _ANY_CRC))
        patches.enter_context(patch.object(restore_checks, "xxhash", _AgreeableHashes))
        patches.enter_context(patch.object(restore, "combine", lambda digests: _Agreeable()))
        patches.enter_context(patch.object(dense_files, "_check_hash", _nothing))
        for module in (commit, commit_log, restore_checks, dense_document):
            patches.enter_context(patch.object(module, "unseal", unchecked_fields))
        yield


def _nothing(*args: object, **kwargs: object) -> None:
    return


class _AnyCrc(int):
    __hash__ = int.__hash__

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True


_ANY_CRC = _AnyCrc()


class _AgreeableHashes:
    @staticmethod
    def xxh3_128_hexdigest(data: bytes) -> str:
        return _Agreeable()
