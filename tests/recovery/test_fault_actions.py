"""What a fault does to a process, in processes made for it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from ett.recovery import fault_actions
from ett.recovery.fault import parse_fault
from ett.recovery.own_network import is_own_network

ACT = "import sys; from ett.recovery import fault, fault_actions; fault_actions.act(fault.parse_fault(sys.argv[1]))"


def ended(spec: str) -> int:
    return subprocess.run([sys.executable, "-c", ACT, spec], check=False, capture_output=True, timeout=300).returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "code"),
    [("kill:step=1", -signal.SIGKILL), ("exit:step=1,code=9", 9), ("raise:step=1", 1), ("stop:step=1,for=0.05", 0)],
)
def test_a_process_ends_as_the_fault_says(spec: str, code: int) -> None:
    assert ended(spec) == code


def test_a_hang_of_a_known_length_is_over_then() -> None:
    for spec in ("hang:step=1,for=0.02", "hang:how=gil,step=1,for=0.02", "hang:how=collective,step=1,for=0.02"):
        begun_s = time.monotonic()
        fault_actions.act(parse_fault(spec))
        assert time.monotonic() - begun_s >= 0.02


def test_a_clock_jumps_for_python_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    mono_s, wall_s = time.monotonic(), time.time()
    fault_actions.act(parse_fault("clock:step=1,by=-1h"))
    before_s, wall_ns, after_s = time.time(), time.time_ns(), time.time()
    assert before_s - 1e-3 <= wall_ns / 1e9 <= after_s + 1e-3
    assert -3600 - 1e-3 <= before_s - wall_s <= -3600 + (time.monotonic() - mono_s) + 1e-3


CUT = """
import socket
from ett.recovery.own_network import is_own_network, set_links
assert is_own_network()
def reaches():
    with socket.socket() as heard, socket.socket() as asking:
        heard.bind(("127.0.0.1", 0)); heard.listen(); asking.settimeout(0.2)
        try:
            asking.connect(heard.getsockname())
        except OSError:
            return False
        return True
set_links(up=True); first = reaches()
set_links(up=False); cut = reaches()
set_links(up=True); again = reaches()
print(first, cut, again)
"""


@pytest.mark.slow
def test_a_network_of_its_own_is_cut_and_mended() -> None:
    own = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True)
    if own.returncode or is_own_network():
        pytest.skip("the kernel allows no network namespace here")
    done = subprocess.run(["unshare", "-n", sys.executable, "-c", CUT], check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "True"], done.stderr
