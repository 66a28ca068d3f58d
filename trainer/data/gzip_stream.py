"""Gzip files as a stream of plain bytes: any number of members, checked to the last byte, without the GIL."""

from __future__ import annotations

import zlib
from typing import IO

_PACKED_CHUNK_BYTES = 1 << 20
_GZIP_MEMBER = 31  # window bits: 32 KiB, with a gzip header and its checksum
GZIP_MAGIC = b"\x1f\x8b"


class DamagedGzip(Exception):
    """`offset` is the byte of the packed file near which it is damaged, or where it ends too early."""

    def __init__(self, fact: str, offset: int) -> None:
        super().__init__(f"{fact} at byte {offset:,} of the packed file")
        self.offset = offset


class GzipStream:
    """Reads plain bytes from the beginning of a packed file; zeros after the last member are padding."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._input = b""  # packed bytes that no member has taken
        self._fed = 0  # packed bytes read from the file
        self._member: zlib._Decompress | None = None  # None between members
        self._is_first = True

    def read(self, size: int) -> bytes:
        """Return up to `size` plain bytes, at least one unless the file is over.

        Raises: DamagedGzip: the file is cut off, or a checksum or header is wrong.
        """
        while True:
            if not self._input and not self._fill():
                if self._member is not None or self._is_first:
                    raise DamagedGzip("the file ends within a member", self._fed)
                return b""
            if self._member is None and not self._begin_member():
                return b""
            assert self._member is not None
            before = self._fed - len(self._input)
            try:
                plain = self._member.decompress(self._input, size)
            except zlib.error as err:
                raise DamagedGzip(str(err).removeprefix("Error -3 while decompressing data: "), before) from err
            self._input = self._member.unconsumed_tail
            if self._member.eof:
                self._input, self._member = self._member.unused_data, None
            if plain:
                return plain

    def skip(self, num_bytes: int) -> None:
        """Read so many plain bytes and forget them."""
        while num_bytes and (plain := self.read(min(num_bytes, _PACKED_CHUNK_BYTES * 4))):
            num_bytes -= len(plain)

    def _fill(self) -> bool:
        self._input = self._packed.read(_PACKED_CHUNK_BYTES)
        self._fed += len(self._input)
        return bool(self._input)

    def _begin_member(self) -> bool:
        """Return False where only padding is left."""
        if not self._is_first:
            while not (rest := self._input.lstrip(b"\0")):
                if not self._fill():
                    return False
            self._input = rest
        self._is_first = False
        if len(self._input) == 1:  # the magic may be cut by the chunk
            self._input += self._packed.read(1)
            self._fed += len(self._input) - 1
        if not GZIP_MAGIC.startswith(self._input[:2]):
            raise DamagedGzip("no gzip member begins", self._fed - len(self._input))
        self._member = zlib.decompressobj(_GZIP_MEMBER)
        return True
