"""A read-only mapping of device memory, tried out with the CUDA driver's own interface.

The numbers and structures are those of `cuda.h`. The probe never raises for what a device does; a
call that must succeed and does not is a `DriverCallFailed`.
"""

from __future__ import annotations

import ctypes
from typing import Final, Literal

from gpu.errors import DriverCallFailed

Outcome = Literal["refused", "not enforced", "enforced"]

PROT_READ: Final = 1
PROT_READ_WRITE: Final = 3
TYPE_PINNED: Final = 1
LOCATION_DEVICE: Final = 1
GRANULARITY_MINIMUM: Final = 0


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocFlags(ctypes.Structure):
    _fields_ = (
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_handle_meta_data", ctypes.c_void_p),
        ("alloc_flags", _AllocFlags),
    )


class _AccessDesc(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Driver:
    """`libcuda`, each call of which must succeed."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        """Raise `DriverCallFailed` for a status other than 0."""
        if status := getattr(self.library, name)(*arguments):
            raise DriverCallFailed(call=name, status=status)


def probe(device: int = 0) -> Outcome:
    """Map a page of device memory, make it read-only and write it; the process is then spoilt.

    Raises `DriverCallFailed`, and `OSError` where there is no driver.
    """
    driver = _Driver()
    driver.call("cuInit", ctypes.c_uint(0))
    context, address, handle = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
    driver.call("cuCtxSetCurrent", context)
    prop = _AllocationProp(type=TYPE_PINNED, location=_Location(LOCATION_DEVICE, device))
    size = ctypes.c_size_t()
    driver.call(
        "cuMemGetAllocationGranularity",
        ctypes.byref(size),
        ctypes.byref(prop),
        ctypes.c_int(GRANULARITY_MINIMUM),
    )
    none = ctypes.c_uint64(0)
    driver.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(prop), none)
    no_alignment = ctypes.c_size_t(0)
    driver.call("cuMemAddressReserve", ctypes.byref(address), size, no_alignment, none, none)
    driver.call("cuMemMap", address, size, ctypes.c_size_t(0), handle, none)
    one = ctypes.c_size_t(1)
    access = _AccessDesc(location=_Location(LOCATION_DEVICE, device), flags=PROT_READ_WRITE)
    driver.call("cuMemSetAccess", address, size, ctypes.byref(access), one)
    driver.call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), size)
    driver.call("cuCtxSynchronize")
    access.flags = PROT_READ
    try:
        driver.call("cuMemSetAccess", address, size, ctypes.byref(access), one)
    except DriverCallFailed:
        return "refused"
    try:
        driver.call("cuMemsetD8_v2", address, ctypes.c_ubyte(2), size)
        driver.call("cuCtxSynchronize")
    except DriverCallFailed:
        return "enforced"
    first = ctypes.c_ubyte()
    driver.call("cuMemcpyDtoH_v2", ctypes.byref(first), address, one)
    return "not enforced" if first.value == 2 else "enforced"
