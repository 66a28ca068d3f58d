"""A job's event files as they grow: each look reads only what was appended since the last one."""

from __future__ import annotations

from pathlib import Path

from ett.event_reader import event_files
from ett.live_account import LiveAccount
from ett.log_columns import CHUNK_BYTES
from ett.ring_tail import WAITING, Tail, waiting_tails


class LogFollower:
    """Feeds a live account from a job's folder, or its events/ folder.

    A last line without its end waits for the rest of it. Files are only appended to: a shorter one is left alone. What
    waits in a ring is taken in before its file has it, and not again after that.
    """

    def __init__(self, path: Path, live: LiveAccount) -> None:
        self._path, self._live = path, live
        self._read: dict[str, int] = {}  # bytes of whole lines that were taken, by file

    def poll(self) -> int:
        """Take in what was appended; return how many bytes of whole lines that was.

        Raises:
            NotFound: there is no such folder.
            CorruptState: a record is of a schema version that this reader does not know.
        """
        tails = waiting_tails(self._path)  # before the files: a line may move from its ring to its file meanwhile
        files: dict[str, Path | None] = {f"{path.parent.name}/{path.name}": path for path in event_files(self._path)}
        # A file that is yet to be made gets the plain name; where that is taken by now, the next look has its lines.
        plain = {name.replace(WAITING, ".jsonl"): tail for name, tail in tails.items()}
        tails = {name: tail for name, tail in plain.items() if name in tails or name not in files}
        return sum(self._follow(name, files.get(name), tails.get(name)) for name in files | dict.fromkeys(tails))

    def _follow(self, name: str, path: Path | None, tail: Tail | None) -> int:
        before = at = self._read.get(name, 0)
        if path is not None and path.stat().st_size > at:
            with path.open("rb", buffering=0) as file:
                file.seek(at)
                rest = b""
                while piece := file.read(CHUNK_BYTES):
                    data = rest + piece
                    end = data.rfind(b"\n") + 1
                    self._take(name, data[:end])
                    rest = data[end:]
                    at += end
        if tail is not None and at >= tail.offset:
            lines = tail.lines[at - tail.offset :]
            end = lines.rfind(b"\n") + 1
            self._take(name, lines[:end])
            at += end
        self._read[name] = at
        return at - before

    def _take(self, name: str, data: bytes) -> None:
        if data:
            self._live.add_bytes(name, data)
