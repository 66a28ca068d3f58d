"""Which devices are looked at before a restart, and which of the driver's answers mean that one is lost."""

from __future__ import annotations

from typing import Any

import pytest

from ett.errors import Unreachable
from ett.recovery.device_checks import check_devices

LOST, NO_PERMISSION, NO_DRIVER = 15, 4, 9


class Driver:
    """What NVML answers, by function; of devices by index, whose names are GPU-a0, GPU-b1, …"""

    def __init__(
        self, count: int, *, devices: dict[int, int] | None = None, handles: bool = True, **codes: int
    ) -> None:
        self._count, self._codes = count, codes
        self._devices, self._handles = devices or {}, handles  # handles: a lost one still has its handle

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self._codes.get(name, 0)

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self._count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0 if self._handles else self._devices.get(index, 0)

    def nvmlDeviceGetUUID(self, handle: Any, uuid: Any, size: int) -> int:
        index = handle.value - 1
        uuid.value = f"GPU-{'abcdefgh'[index]}{index}".encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        return self._devices.get(handle.value - 1, 0)


def check(monkeypatch: pytest.MonkeyPatch, driver: Driver, *, ranks: int = 2, fewest: int = 0, **given: Any) -> str:
    monkeypatch.setattr("ctypes.CDLL", lambda name: driver)
    asked = {"is_wanted": True, "visible": None} | given
    try:
        return check_devices(range(ranks), fewest or ranks, **asked)
    except Unreachable as err:
        return f"ill: {err.fact}"


@pytest.mark.parametrize(
    ("driver", "is_wanted", "said"),
    [
        (Driver(2), True, ""),
        (Driver(0), False, ""),
        (Driver(0), True, "ill: the NVIDIA driver shows 0 devices"),
        (Driver(0, nvmlInit_v2=NO_DRIVER), False, ""),
        (Driver(0, nvmlInit_v2=NO_DRIVER), True, "ill: the NVIDIA driver does not answer (NVML error 9)"),
        (Driver(0, nvmlInit_v2=NO_PERMISSION), True, ""),
        (Driver(2, devices={0: LOST}), True, "ill: device 0 does not answer (NVML error 15)"),
        (Driver(2, devices={0: LOST}, handles=False), True, "ill: device 0 does not answer (NVML error 15)"),
        (Driver(2, devices={0: NO_PERMISSION, 1: NO_PERMISSION}), True, ""),
    ],
)
def test_a_device_that_is_lost_is_named(
    driver: Driver, is_wanted: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(monkeypatch, driver, is_wanted=is_wanted) == said


@pytest.mark.parametrize("handles", [True, False])
@pytest.mark.parametrize(
    ("visible", "is_ill"),
    [
        (None, False),  # ranks 0 and 1 take devices 0 and 1
        ("0,1", False),
        ("1, 2", True),
        ("2,2", True),
        ("GPU-a,GPU-b1", False),
        ("GPU-a,GPU-c2", True),
        ("MIG-7,MIG-8", False),
        ("", False),
        ("-1,2", False),
        ("0,9,2", False),  # CUDA reads no further than to the first that is not there
    ],
)
def test_only_devices_that_the_jobs_ranks_take_are_looked_at(
    visible: str | None, is_ill: bool, handles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(4, devices={2: LOST}, handles=handles)
    assert check(monkeypatch, driver, visible=visible).startswith("ill: ") == is_ill


@pytest.mark.parametrize(
    ("ranks", "fewest", "said"),
    [
        (4, 3, "device 2 does not answer (NVML error 15)"),
        (4, 4, "ill: device 2 does not answer (NVML error 15)"),
        (8, 7, "ill: device 2 does not answer (NVML error 15)"),  # two ranks take it
        (2, 1, ""),
    ],
)
def test_as_many_ranks_need_a_device_as_the_job_may_go_on_with(
    ranks: int, fewest: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(monkeypatch, Driver(4, devices={2: LOST}), ranks=ranks, fewest=fewest) == said
