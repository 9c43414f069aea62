"""Compares markers with and without a memory barrier, and measures what a marker costs between kernels of which
the second may start before the first has ended (programmatic stream serialisation)."""
import ctypes
import mmap
import time
from ctypes import Structure, byref, c_float, c_int, c_ubyte, c_uint32, c_void_p

from lib import measure
from lib.cuda import MIB, Driver, Refused
from lib.questions import Questions
from lib.words import Words
from answer import main

NO_BARRIER = 1  # CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER
PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
WAYS = {"barrier": ("cuStreamWriteValue32_v2", 0), "no_barrier": ("cuStreamWriteValue32_v2", NO_BARRIER),
        "no_barrier_old_call": ("cuStreamWriteValue32", NO_BARRIER)}


class Attribute(Structure):
    """CUlaunchAttribute, 72 bytes."""
    _fields_ = [("id", c_int), ("pad", c_ubyte * 4), ("value", c_int), ("rest", c_ubyte * 60)]


class Config(Structure):
    """CUlaunchConfig, 56 bytes."""
    _fields_ = [("size", c_uint32 * 6), ("shared", c_uint32), ("stream", c_void_p), ("attributes", c_void_p),
                ("count", c_uint32)]


class Barriers:
    """Holds what all questions share."""

    def __init__(self, sim):
        self.sim, self.driver = sim, Driver()
        self.kernels, self.words = self.driver.kernels(), Words(self.driver)
        self.count = 60 if sim else 400

    def marker(self, way, stream):
        """Returns a function that makes the stream write a word and returns the status."""
        name, flags = WAYS[way]
        call, word = self.driver.function(name), c_void_p(self.words.at(1))
        return lambda: call(stream, word, c_uint32(0), c_uint32(flags))

    def launches(self, stream, programmatic):
        """Returns a function that launches a kernel of 10 us and returns the status."""
        prepared = self.kernels.prepared("gcgroup_spin", 10, stream=stream)
        call = self.driver.function("cuLaunchKernelEx")
        attribute = Attribute(PROGRAMMATIC, value=1)
        config = Config((c_uint32 * 6)(1, 1, 1, 1, 1, 1), 0, stream.value, ctypes.addressof(attribute), 1)
        config.kept, config.count = attribute, int(programmatic)
        return lambda: call(byref(config), prepared[0], prepared[9], None)

    def queue(self, programmatic, way=None):
        """Returns the device's microseconds for each of many kernels of 10 us in a queue, with a marker
        behind each if `way` is given."""
        d, stream = self.driver, self.driver.stream(1)
        launch, marker = self.launches(stream, programmatic), way and self.marker(way, stream)
        first, last, samples = d.event(), d.event(), []
        for _ in range(3 if self.sim else 7):
            self.kernels("gcgroup_spin", 5_000 if self.sim else 20_000, stream=stream)
            d.cuEventRecord(first, stream)
            status = 0
            for _ in range(self.count):
                status = status or launch() or (marker() if marker else 0)
            d.cuEventRecord(last, stream)
            d.cuEventSynchronize(last)
            if status:
                raise Refused(f"a queue with {way or 'no marker'}", status, d.error(status))
            samples.append(d.get(c_float, "cuEventElapsedTime", first, last) * 1000 / self.count)
        d.cuStreamDestroy_v2(stream)
        return measure.spread(samples)

    def device(self, programmatic):
        """Returns the microseconds of each kernel without markers, and what each way of markers adds."""
        table = {"bare": self.queue(programmatic)}
        for way in WAYS:
            try:
                table[way] = self.queue(programmatic, way)
                table[way]["more"] = round(table[way]["median"] - table["bare"]["median"], 3)
            except Refused as refused:
                table[way] = {"refused": str(refused)}
        return table

    def order(self):
        """Returns, by way, how often host memory that a kernel has written was not yet visible when the
        marker behind the kernel was seen."""
        size, stream, d = (64 << 10 if self.sim else MIB), self.driver.stream(1), self.driver
        target, table = Words(d, mmap.mmap(-1, size), size), {}
        last = size // 4 - 1
        for way, (name, flags) in WAYS.items():
            table[way] = row = {"rounds": 0, "stale": 0}
            for value in range(1, 41 if self.sim else 201):
                self.words.memory[3] = 0
                self.kernels("gcgroup_fill", target.device, size // 4, value, grid=64, block=256, stream=stream)
                status = d.function(name)(stream, c_void_p(self.words.at(3)), c_uint32(value), c_uint32(flags))
                if status:
                    row["refused"] = d.error(status)
                    break
                until = time.monotonic() + 10
                while self.words.memory[3] != value:
                    if time.monotonic() > until:
                        raise TimeoutError("the marker is not written")
                seen = [target.memory[index] for index in (0, last // 2, last)]
                row["rounds"] += 1
                row["stale"] += seen != [value, value + last // 2, value + last]
                d.cuStreamSynchronize(stream)
        target.close()
        return table


def more(table):
    """Describes what markers add."""
    return ", ".join(f"{way} {row['more']:.2f}" if "more" in row else f"{way} refused"
                     for way, row in table.items() if way != "bare")


def body(sim, facts):
    barriers, questions = Barriers(sim), Questions(facts)
    plain = questions.ask("device_usec", barriers.device, False)
    programmatic = questions.ask("programmatic_usec", barriers.device, True)
    order = questions.ask("order", barriers.order)
    stale = order and {way: row["stale"] for way, row in order.items() if row["rounds"]}
    return questions.verdict(
        plain and f"a marker adds usec: {more(plain)}",
        programmatic and "between programmatic launches ({:.2f} usec a kernel, {:.2f} otherwise): {}".format(
            programmatic["bare"]["median"], plain["bare"]["median"] if plain else 0, more(programmatic)),
        order and ("words are seen BEFORE the kernel's writes: " + str(stale) if any(stale.values())
                   else "no word is seen before the kernel's writes"))


if __name__ == "__main__":
    main(body)
