"""Do the NVIDIA devices that a job's ranks take still answer? Asked of the driver, without a context on any of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from ett.errors import Unreachable

NVML = "libnvidia-ml.so.1"
_NO_DRIVER = 9  # NVML_ERROR_DRIVER_NOT_LOADED
_MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH: the driver was updated, and no process can use it
# TIMEOUT, GPU_IS_LOST, UNKNOWN. Others, such as NO_PERMISSION in a container, tell nothing of a device.
_LOST = frozenset({10, 15, 999})
_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE


class _Device(NamedTuple):
    name: str
    code: int  # what NVML answers of it
    uuid: str = ""  # "": it was not told


def check_devices(places: Sequence[int], fewest: int, *, is_wanted: bool, visible: str | None) -> str:
    """Raise where fewer than `fewest` of the ranks at `places` would have a device that answers.

    Nothing is told without NVIDIA's driver, nor of a part of a device.

    Args:
        places: LOCAL_RANK of each rank: they take the devices that the job sees in turn.
        is_wanted: the job asks for a device; else it would go on without one.
        visible: CUDA_VISIBLE_DEVICES; None: all are.
    Returns: what is noted: a device that some rank lacks.
    """
    try:
        nvml: Any = ctypes.CDLL(NVML)
    except OSError:
        return ""  # another maker's device, or none: torch will tell
    code = nvml.nvmlInit_v2()
    if code in _LOST or code == _MISMATCH or (code == _NO_DRIVER and is_wanted):
        raise _device_error(f"the NVIDIA driver does not answer (NVML error {code})")
    if code:
        return ""
    try:
        devices = _all_devices(nvml)
    finally:
        nvml.nvmlShutdown()
    if is_wanted and not devices:
        raise _device_error("the NVIDIA driver shows 0 devices")
    seen = devices if visible is None else _seen(devices, visible)
    if not seen:
        return ""
    lost = [seen[place % len(seen)] for place in places if seen[place % len(seen)].code in _LOST]
    said = "; ".join(
        dict.fromkeys(f"device {device.name} does not answer (NVML error {device.code})" for device in lost)
    )
    if lost and len(places) - len(lost) < fewest:
        raise _device_error(said)
    return said


def _all_devices(nvml: Any) -> list[_Device]:
    """Return every device that the driver shows, by index."""
    count = ctypes.c_uint()
    code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    if code in _LOST:
        raise _device_error(f"the NVIDIA driver does not say how many devices there are (NVML error {code})")
    return [_device(nvml, index) for index in range(count.value)]


def _device(nvml: Any, index: int) -> _Device:
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    uuid = ctypes.create_string_buffer(_UUID_BYTES)
    code = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    if code:
        return _Device(str(index), code)
    nvml.nvmlDeviceGetUUID(handle, uuid, _UUID_BYTES)
    return _Device(str(index), nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)), uuid.value.decode())


def _seen(devices: Sequence[_Device], visible: str) -> list[_Device]:
    """Return the devices of CUDA_VISIBLE_DEVICES in its order; as CUDA does, up to the first word that names none."""
    seen = []
    for word in map(str.strip, visible.split(",")):
        if word.isdecimal() and int(word) < len(devices):
            seen.append(devices[int(word)])
        elif word.startswith("GPU-"):
            # A device that is lost tells no name: it may be this one if no other is.
            nameless = next((device.code for device in devices if not device.uuid), 0)
            named = (device for device in devices if device.uuid.startswith(word))
            seen.append(next(named, _Device(word, nameless)))
        elif word.startswith("MIG-"):
            seen.append(_Device(word, 0))
        else:
            break
    return seen


def _device_error(fact: str) -> Unreachable:
    return Unreachable(
        fact, do="`nvidia-smi` and `dmesg | grep -i xid` say more; reset the device or take another host"
    )
