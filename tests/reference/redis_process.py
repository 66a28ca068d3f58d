"""A Redis of Debian that a test starts for itself."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path


class RedisProcess:
    """A server on a socket in a folder of its own; `kill` is its machine's end."""

    def __init__(self, *options: str) -> None:
        binary = shutil.which("redis-server")
        assert binary is not None
        self._folder = Path(tempfile.mkdtemp(prefix="ett-redis-", dir="/tmp"))  # a socket's path has at most 107 bytes
        self.path = self._folder / "s"
        self.url = f"unix://{self.path}"
        where = ["--port", "0", "--unixsocket", str(self.path), "--dir", str(self._folder)]
        command = [binary, *where, "--save", "", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        if not any("ready to accept connections" in line for line in self._process.stdout):
            self.end()
            raise AssertionError("redis-server ended at its start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
