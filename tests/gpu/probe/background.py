"""Measures how a thread that creates or moves memory delays launches by other threads of the process, because
the driver has locks of its own."""
import ctypes
import threading
import time
from ctypes import c_uint64, c_void_p

from lib import measure, vmm
from lib.cuda import MIB, Driver, Refused
from lib.questions import Questions
from answer import main

SIZE = 64 * MIB


class Background(threading.Thread):
    """Repeats an action until it is stopped or refused."""

    def __init__(self, driver, work):
        super().__init__(daemon=True)
        self.driver, self.work, self.stopped, self.usec, self.refusal = driver, work, False, [], None

    def run(self):
        """Times each repetition, including Python's own overhead."""
        try:
            self.driver.cuCtxSetCurrent(c_void_p(self.driver.context))
            while not self.stopped:
                self.usec.append(measure.usec(self.work))
        except Refused as refused:
            self.refusal = str(refused)


def rounds(driver):
    """Returns the background actions by name."""
    chunk, stream = vmm.Chunk(driver, SIZE), driver.stream(1)
    device, pinned = driver.alloc(SIZE), driver.get(c_uint64, "cuMemHostAlloc", SIZE, 2)

    def created(kind):
        return lambda: driver.cuMemRelease(vmm.create(driver, SIZE, kind))

    def mapped():
        driver.cuMemUnmap(chunk.address, SIZE)
        vmm.map_memory(driver, chunk.address, SIZE, chunk.handle)

    def allocated():
        address = c_void_p()
        driver.cuMemHostAlloc(ctypes.byref(address), SIZE, 2)
        driver.cuMemFreeHost(address)

    def copied():
        driver.cuMemcpyDtoHAsync_v2(c_void_p(pinned), device, SIZE, stream)
        driver.cuStreamSynchronize(stream)

    return {"nothing": None, "create_device": created(vmm.DEVICE), "create_host_numa": created(vmm.HOST_NUMA),
            "create_pinned": allocated, "map_and_unmap": mapped, "copy_out": copied}


def beside(driver, kernel, stream, work, seconds):
    """Returns the microseconds of launches, and of launches with their kernels, while `work` runs in the
    background."""
    launch, wait = driver.function("cuLaunchKernel"), driver.function("cuStreamSynchronize")
    background = Background(driver, work) if work else None
    if background:
        background.start()
    launched, ended, until = [], [], time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter_ns()
        status = launch(*kernel)
        launched.append((time.perf_counter_ns() - began) / 1000)
        status |= wait(stream)
        ended.append((time.perf_counter_ns() - began) / 1000)
        if status:
            raise Refused("cuLaunchKernel", status, driver.error(status))
    answer = {"launch_usec": measure.spread(launched), "end_usec": measure.spread(ended)}
    if background:
        background.stopped = True
        background.join(20)
        answer["round_usec"] = measure.spread(background.usec, 1)
        if background.refusal:
            answer["refused"] = background.refusal
    return answer


def body(sim, facts):
    driver, questions = Driver(), Questions(facts)
    stream, seconds = driver.stream(1), 0.2 if sim else 1.0
    kernel = driver.kernels().prepared("gcgroup_spin", 0, stream=stream)
    facts["mib"] = SIZE // MIB
    seen = {name: questions.ask(name, beside, driver, kernel, stream, work, seconds)
            for name, work in rounds(driver).items()}
    return questions.verdict("p99 and maximum of a launch in usec, beside " + ", ".join(
        f"{name.replace('_', ' ')} {row['launch_usec']['p99']:.0f} {row['launch_usec']['max']:.0f}"
        + (" (refused)" if "refused" in row else "") for name, row in seen.items() if row))


if __name__ == "__main__":
    main(body)
