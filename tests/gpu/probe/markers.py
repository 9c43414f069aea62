"""Compares the ways to detect that work on a stream has completed: words that the stream writes (markers),
and events. Measures what a marker costs, how late it is seen, and what it delays."""
import fcntl
import mmap
import os
import time
from ctypes import c_float, c_uint32, c_void_p

from lib import measure
from lib.cuda import Driver, Refused
from lib.questions import Questions
from lib.words import PAGE, Words, shared_memory
from answer import main

NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
PATIENCE = 15.0


def wait_for(memory, index, value):
    """Polls a word until it has the value. Returns the time in nanoseconds."""
    until = time.perf_counter_ns() + int(PATIENCE * 1e9)
    while memory[index] != value:
        if time.perf_counter_ns() > until:
            raise TimeoutError(f"word {index} is {memory[index]}, not {value}")
    return time.perf_counter_ns()


class Markers:
    """Holds what all questions share."""

    def __init__(self, sim):
        self.sim, self.driver = sim, Driver()
        self.kernels, self.words, self.value = self.driver.kernels(), Words(self.driver), 0
        self.calls = 200 if sim else 400

    def write_marker(self, stream, index=0):
        """Makes the stream write a new value, and returns the value."""
        self.value += 1
        self.driver.cuStreamWriteValue32_v2(stream, self.words.at(index), self.value, 0)
        return self.value

    def spin(self, usec, stream=None):
        """Launches a kernel of `usec` microseconds."""
        self.kernels("gcgroup_spin", int(usec), stream=stream)

    def destroy(self, *streams):
        """Destroys streams, because more streams than hardware queues share the queues."""
        self.driver.cuCtxSynchronize()
        for stream in streams:
            self.driver.cuStreamDestroy_v2(stream)

    def calls_of(self, stream):
        """Returns the calls to compare, with prepared arguments."""
        d, word = self.driver, self.words.at(1)
        plain, timed = d.event(NO_TIMING), d.event(0)
        table = {
            "nothing": (measure.NOTHING, (c_uint32(0),)),
            "launch": (d.function("cuLaunchKernel"), self.kernels.prepared("gcgroup_spin", 0, stream=stream)),
            "write_value": (d.function("cuStreamWriteValue32_v2"), (stream, word, c_uint32(0), c_uint32(0))),
            "event_record": (d.function("cuEventRecord"), (plain, stream)),
            "event_record_timed": (d.function("cuEventRecord"), (timed, stream)),
            "event_query": (d.function("cuEventQuery"), (plain,)),
            "stream_query": (d.function("cuStreamQuery"), (stream,)),
        }
        c_word = lambda argument: c_void_p(argument) if isinstance(argument, int) else argument
        return {name: (call, tuple(map(c_word, arguments))) for name, (call, arguments) in table.items()}

    def cost(self, streams, busy=False):
        """Returns the host's microseconds for each kind of call, without ctypes' own time, on several streams
        in turn. `busy`: while a kernel runs on another stream."""
        streams = [self.driver.stream(1) for _ in range(streams)]
        other, answer, load = self.driver.stream(1), {}, self.calls // len(streams)
        tables = [self.calls_of(stream) for stream in streams]
        for name in tables[0]:
            samples = []
            for _ in range(3 if self.sim else 9):
                if busy:
                    self.spin(20_000, other)
                try:
                    turn = [measure.usec_each(*table[name], load) for table in tables]
                except RuntimeError as refused:
                    samples = str(refused)
                    break
                samples.append(sum(turn) / len(turn))
                self.driver.cuCtxSynchronize()
            answer[name] = samples
        # The minimum of ctypes' own time: it varies only upwards.
        floor = min(answer.pop("nothing"))
        self.destroy(other, *streams)
        return {name: took if isinstance(took, str) else measure.spread([max(t - floor, 0) for t in took])
                for name, took in answer.items()}

    def on_the_device(self):
        """Returns the microseconds that a marker after each kernel adds to a queue of short kernels, until
        all have completed."""
        stream, count = self.driver.stream(1), 100 if self.sim else 400
        table, answer = self.calls_of(stream), {}
        arms = {"bare": None, **{name: table[name] for name in ("write_value", "event_record", "event_record_timed")}}
        for name, marker in arms.items():
            try:
                took = [self.queue(stream, count, marker) for _ in range(3 if self.sim else 7)]
            except Refused as refused:
                answer[name] = str(refused)
                continue
            answer[name] = measure.spread(took)
            answer[name]["more"] = round(answer[name]["median"] - answer["bare"]["median"], 3)
        self.destroy(stream)
        return answer

    def queue(self, stream, count, marker):
        """Returns the microseconds for each of `count` kernels with a marker behind each. They are queued
        behind a long kernel, so that the host's time is not included."""
        launch = self.driver.function("cuLaunchKernel")
        kernel = self.kernels.prepared("gcgroup_spin", 10, stream=stream)
        first, last = self.driver.event(), self.driver.event()
        self.spin(5_000 if self.sim else 20_000, stream)
        self.driver.cuEventRecord(first, stream)
        status = 0
        for _ in range(count):
            status |= launch(*kernel)
            if marker:
                status |= marker[0](*marker[1])
        self.driver.cuEventRecord(last, stream)
        self.driver.cuEventSynchronize(last)
        took = self.driver.get(c_float, "cuEventElapsedTime", first, last) * 1000 / count
        for event in (first, last):
            self.driver.cuEventDestroy_v2(event)
        if status:
            raise Refused("a marker in a queue", status, self.driver.error(status))
        return took

    def load(self):
        """Returns the microseconds of reading the word, including Python's own overhead."""
        memory, rounds = self.words.memory, 20_000
        began = time.perf_counter_ns()
        for _ in range(rounds):
            memory[0]
        return {"usec": (time.perf_counter_ns() - began) / 1000 / rounds}

    def lateness(self):
        """Returns the microseconds from the kernel's own last write until its marker is seen, and until
        cuEventQuery reports completion."""
        kernels, stream, late = self.driver.own_kernels(), self.driver.stream(1), {"write_value": [], "event": []}
        memory, event = self.words.memory, self.driver.event(NO_TIMING)
        query = self.driver.function("cuEventQuery")
        for turn in range(1, 201):
            self.value += 1
            value = self.value
            kernels("probe_flag", self.words.at(2), 200_000, value, stream=stream)
            if turn % 2:
                value_of_marker = self.write_marker(stream)
                ended = wait_for(memory, 2, value)
                late["write_value"].append((wait_for(memory, 0, value_of_marker) - ended) / 1000)
            else:
                self.driver.cuEventRecord(event, stream)
                ended = wait_for(memory, 2, value)
                while query(event):
                    pass
                late["event"].append((time.perf_counter_ns() - ended) / 1000)
            self.driver.cuCtxSynchronize()
        self.destroy(stream)
        return {name: measure.spread(samples) for name, samples in late.items()}

    def round_trip(self):
        """Returns the microseconds from the launch of a kernel of 100 us until its marker is seen, minus 100."""
        stream, samples = self.driver.stream(1), []
        for _ in range(10 if self.sim else 100):
            began = time.perf_counter_ns()
            self.spin(100, stream)
            samples.append((wait_for(self.words.memory, 0, self.write_marker(stream)) - began) / 1000 - 100)
        self.destroy(stream)
        return measure.spread(samples)

    def after(self, *submissions):
        """Returns the milliseconds from the first submission until a marker behind all of them is seen: the
        minimum of three runs, because a delay by waiting occurs in every run, and other delays do not."""
        took = []
        for _ in range(3):
            self.driver.cuCtxSynchronize()
            began, value = time.perf_counter_ns(), None
            for submit in submissions:
                value = submit()
            took.append(wait_for(self.words.memory, 0, value) - began)
        return round(min(took) / 1e6, 3)

    def legacy(self):
        """Returns which earlier work a marker waits for, and which later work waits for a marker:
        milliseconds, where the kernel takes `spin`."""
        d, usec = self.driver, 20_000 if self.sim else 50_000
        own, first, second, free = d.stream(0), d.stream(0), d.stream(0), d.stream(1)
        on = lambda stream: lambda: self.spin(usec, stream)
        marker = lambda stream, index=0: lambda: self.write_marker(stream, index)
        plain, event = d.event(NO_TIMING), lambda stream: lambda: d.cuEventRecord(plain, stream)
        crowd = lambda: [self.spin(usec, stream) for stream in many]
        answer = {
            "spin": usec / 1000,
            # Earlier work that a marker waits for.
            "own_blocking_after_legacy": self.after(on(None), marker(own)),
            "own_blocking_after_blocking": self.after(on(first), marker(own)),
            "own_blocking_after_non_blocking": self.after(on(free), marker(own)),
            "legacy_after_legacy": self.after(on(None), marker(None)),
            "legacy_after_blocking": self.after(on(first), marker(None)),
            "non_blocking_after_legacy": self.after(on(None), marker(free)),
            # Later work that waits for a marker, while a kernel runs on `first`.
            "second_alone": self.after(on(first), marker(second)),
            "second_behind_a_marker_on_own": self.after(on(first), marker(own, 1), marker(second)),
            "second_behind_a_marker_on_legacy": self.after(on(first), marker(None, 1), marker(second)),
            "second_behind_an_event_on_own": self.after(on(first), event(own), marker(second)),
            "second_behind_an_event_on_legacy": self.after(on(first), event(None), marker(second)),
            "legacy_behind_a_marker_on_own_behind_legacy": self.after(on(None), marker(own, 1), marker(None)),
        }
        # With more streams than queues in hardware.
        many = [d.stream(1) for _ in range(40)]
        answer["own_beside_40_busy_streams"] = self.after(crowd, marker(own))
        self.destroy(own, first, second, free, *many)
        return answer

    def memfd(self):
        """Returns whether shared memory, plain and sealed, can be registered and written by a stream, and
        which mappings see the value."""
        answer = {}
        shrink, grow, seal = (getattr(fcntl, name) for name in ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL"))
        for name, seals in (("plain", 0), ("sealed", shrink | grow | seal)):
            descriptor = shared_memory("probe", seals)
            here, there = (mmap.mmap(descriptor, PAGE) for _ in range(2))
            try:
                words = Words(self.driver, here)
            except Refused as refused:
                answer[name] = {"registered": False, "why": str(refused)}
                continue
            self.driver.cuStreamWriteValue32_v2(None, words.at(5), 0xFEED, 0)
            self.driver.cuCtxSynchronize()
            seen = [words.memory[5], int.from_bytes(there[20:24], "little"),
                    int.from_bytes(os.pread(descriptor, 4, 20), "little")]
            words.close()
            answer[name] = {"registered": True, "seen": seen == [0xFEED] * 3}
        return answer


def body(sim, facts):
    markers, questions = Markers(sim), Questions(facts)
    # Asked first, while there are few streams.
    legacy = questions.ask("waits_ms", markers.legacy)
    host = questions.ask("host_usec", markers.cost, 1)
    questions.ask("host_usec_8_streams", markers.cost, 8)
    questions.ask("host_usec_busy", markers.cost, 1, True)
    device = questions.ask("device_usec", markers.on_the_device)
    load = questions.ask("load_usec", markers.load)
    late = questions.ask("seen_late_usec", markers.lateness)
    questions.ask("round_trip_usec", markers.round_trip)
    memfd = questions.ask("memfd", markers.memfd)
    half = legacy and legacy["spin"] / 2
    return questions.verdict(
        host and "host usec: " + ", ".join(
            f"{name} {host[name]['median']:.2f}" for name in ("write_value", "event_record", "event_query")
            if isinstance(host[name], dict)) + f", a look {load['usec']:.2f}",
        device and "on the device " + ", ".join(
            f"{name} {device[name]['more']:.2f}" for name in ("write_value", "event_record")),
        late and f"seen {late['write_value']['median']:.1f} usec late",
        legacy and "a marker on an own blocking stream {} earlier work of the default stream, and {} other streams".format(
            "covers" if legacy["own_blocking_after_legacy"] > half else "DOES NOT COVER",
            "holds back no" if legacy["second_behind_a_marker_on_own"] < half else "HOLDS BACK"),
        memfd and "streams can{} write shared memory".format("" if memfd["sealed"].get("seen") else "NOT"))


if __name__ == "__main__":
    main(body)
