"""Checks the driver without gcgroupfs: context, kernel compilation and launch, with the seconds of each"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import ctypes
import time
from ctypes import c_int, c_void_p

from held import Account
from lib.cuda import COMPUTE_CAPABILITY, MULTIPROCESSORS, VMM, Driver
from lib.sums import Sums
from part import Skip, main, require

SIZE = 4 << 20
# Free bytes that suffice for all parts, also on the simulated driver.
LEAST_FREE = 6 << 30


def body(sim, facts):
    seconds, account = {}, Account()
    facts["seconds"] = seconds

    def step(name, function):
        began = time.monotonic()
        answer = function()
        seconds[name] = round(time.monotonic() - began, 4)
        facts.save()
        return answer

    driver = step("initialise", lambda: Driver(context=False))
    name = ctypes.create_string_buffer(128)
    driver.cuDeviceGetName(name, 128, driver.device)
    facts.update(device=name.value.decode(errors="replace"), cuda=driver.get(c_int, "cuDriverGetVersion"),
                 capability=[driver.attribute(number) for number in COMPUTE_CAPABILITY],
                 multiprocessors=driver.attribute(MULTIPROCESSORS), vmm=driver.attribute(VMM),
                 library=driver.path())
    driver.context = step("context", lambda: driver.get(c_void_p, "cuDevicePrimaryCtxRetain", driver.device))
    driver.cuCtxSetCurrent(c_void_p(driver.context))
    facts["free"] = free = driver.free_memory()
    if free < LEAST_FREE:
        raise Skip(f"only {free >> 20} MiB are free on the device")
    sums = step("module", lambda: Sums(driver))
    address = driver.alloc(SIZE)
    step("first_launch", lambda: (sums.fill(address, SIZE, 7), driver.cuCtxSynchronize()))
    require(step("checksum", lambda: sums.holds(address, SIZE, 7)), "a kernel computes a wrong result")
    facts["context_bytes_by_nvml"] = account.number(os.getpid())
    return ("{} with CUDA {}; first launch after {:.2f} s, "
            "including {:.2f} s for the context and {:.2f} s for compiling kernels").format(
        facts["device"], facts["cuda"], sum(seconds.values()), seconds["context"], seconds["module"])


main(body)
