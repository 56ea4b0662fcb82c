"""The stand-in for CUDA IPC refuses what CUDA refuses, and another process can open it."""

import os
import subprocess
import sys

import numpy as np
import pytest

from psframework import backend
from psframework.errors import WireError
from psframework.testing.strict_device import strict_devices
from psframework.testing.strict_ipc import StrictIpc

OPENER = """
import sys
from psframework import backend
from psframework.testing.strict_device import strict_devices
with strict_devices("gpu-0"):
    memory = backend.open_shared("gpu-0", "gpu-0", bytes.fromhex(sys.argv[1]), int(sys.argv[2]))
    found = memory.read(64, 8)
    assert str(backend.device_of(found)) == "gpu-0"
    print(backend.asnumpy(found).tolist())
    memory.close()
"""


def opened_elsewhere(handle, nbytes):
    line = [sys.executable, "-c", OPENER, handle.hex(), str(nbytes)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_another_process_opens_it():
    with strict_devices("gpu-0") as (device,):
        memory = StrictIpc(device).allocate(0, 4096)
        memory.write(64, device.to_device(np.arange(8, dtype=np.uint8)))
        done = opened_elsewhere(memory.handle, 4096)
        assert done.stdout.strip() == str(list(range(8))), done.stderr
        assert "promised" in opened_elsewhere(memory.handle, 4097).stderr
        memory.close()
        memory.close()
        assert opened_elsewhere(memory.handle, 4096).returncode


def test_its_own_handle_and_what_is_none():
    with strict_devices("gpu-0") as (device,):
        memory = StrictIpc(device).allocate(0, 4096)
        for address, handle in (("gpu-0", memory.handle), ("gpu-0", bytes(64)), ("gpu-1", memory.handle)):
            with pytest.raises(WireError):
                backend.open_shared("gpu-0", address, handle, 4096)
        with pytest.raises(WireError):
            memory.read(4000, 97)
        memory.close()


def test_no_descriptor_is_left():
    before = len(os.listdir("/proc/self/fd"))
    with strict_devices("gpu-0") as (device,):
        StrictIpc(device).allocate(0, 4096).close()
    assert len(os.listdir("/proc/self/fd")) == before
