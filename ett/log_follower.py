"""A job's event files as they grow: each look reads only what was appended since the last one."""

from __future__ import annotations

from pathlib import Path

from ett import event_columns
from ett.event_reader import event_files, parse_file
from ett.live_account import LiveAccount
from ett.log_columns import CHUNK_BYTES


class LogFollower:
    """Feeds a live account from a job's folder, or its events/ folder.

    A last line without its end waits for the rest of it. Files are only appended to: a shorter one is left alone.
    """

    def __init__(self, path: Path, live: LiveAccount) -> None:
        self._path, self._live = path, live
        self._read: dict[Path, int] = {}  # bytes of whole lines that were taken

    def poll(self) -> int:
        """Take in what was appended; return how many bytes of whole lines that was.

        Raises:
            NotFound: there is no such folder.
            CorruptState: a record is of a schema version that this reader does not know.
        """
        return sum(self._follow(file) for file in event_files(self._path))

    def _follow(self, path: Path) -> int:
        before = at = self._read.get(path, 0)
        if path.stat().st_size <= at:
            return 0
        name = f"{path.parent.name}/{path.name}"
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            rest = b""
            while piece := file.read(CHUNK_BYTES):
                data = rest + piece
                end = data.rfind(b"\n") + 1
                self._take(name, data[:end])
                rest = data[end:]
                at += end
        self._read[path] = at
        return at - before

    def _take(self, name: str, data: bytes) -> None:
        if not data:
            return
        if event_columns.NATIVE is None:
            self._live.add_file(parse_file(name, data))
        else:
            self._live.add_lines(name, data, event_columns.parse_lines(data))
