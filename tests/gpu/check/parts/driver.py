"""Whether the driver works at all, without gcgroupfs: a context, a kernel that it compiles, a launch. How long each takes"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import ctypes
import time
from ctypes import c_int, c_void_p

from held import Account
from lib.cuda import COMPUTE_CAPABILITY, MULTIPROCESSORS, VMM, Driver
from lib.sums import Sums
from part import main, require

SIZE = 4 << 20


def body(sim, facts):
    seconds, account, free = {}, Account(), None
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
    require(free >= 9 << 30 or sim, f"only {free} bytes are free on the device: the parts take up to 8 GB")
    sums = step("module", lambda: Sums(driver))
    address = driver.alloc(SIZE)
    step("first_launch", lambda: (sums.fill(address, SIZE, 7), driver.cuCtxSynchronize()))
    require(step("checksum", lambda: sums.holds(address, SIZE, 7)), "a kernel computes something else than it should")
    facts["context_bytes_by_nvml"] = account.number(os.getpid())
    return "{} with CUDA {}; to a first launch {:.2f} s, of which a context {:.2f} and compiling kernels {:.2f}".format(
        facts["device"], facts["cuda"], sum(seconds.values()), seconds["context"], seconds["module"])


main(body)
