"""Checks which streams' work an event of a whole context (cuCtxRecordEvent) covers, when it is seen, what it
holds back, and what it does to a capture."""
import time
from ctypes import byref, c_void_p

from lib import measure
from lib.cuda import Driver, Refused
from lib.questions import Questions
from answer import main

NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
PER_THREAD = c_void_p(2)  # CU_STREAM_PER_THREAD
MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
PATIENCE = 15.0


class Contexts:
    """Holds what all questions share: the primary context, and one of cuCtxCreate."""

    def __init__(self, sim):
        self.sim, self.driver = sim, Driver()
        self.usec = 20_000 if sim else 40_000
        self.kernels = {}

    def enter(self, context):
        """Makes a context current and returns its kernels."""
        self.driver.cuCtxSetCurrent(c_void_p(context))
        if context not in self.kernels:
            self.kernels[context] = self.driver.kernels()
            self.kernels[context]("gcgroup_spin", 1)
            self.driver.cuCtxSynchronize()
        return self.kernels[context]

    def seen(self, event):
        """Waits until the event has completed. Returns the time in nanoseconds."""
        query, until = self.driver.function("cuEventQuery"), time.perf_counter_ns() + int(PATIENCE * 1e9)
        while query(event):
            if time.perf_counter_ns() > until:
                raise TimeoutError("the event does not complete")
        return time.perf_counter_ns()

    def covers(self, context, stream):
        """Returns the milliseconds until an event of the context is seen behind a kernel of self.usec on a
        stream, and whether it waited for the kernel."""
        kernels, event = self.enter(context), self.driver.event(NO_TIMING)
        took = []
        for _ in range(3):
            self.driver.cuCtxSynchronize()
            began = time.perf_counter_ns()
            kernels("gcgroup_spin", self.usec, stream=stream)
            self.driver.cuCtxRecordEvent(c_void_p(context), event)
            took.append((self.seen(event) - began) / 1e6)
        self.driver.cuCtxSynchronize()
        self.driver.cuEventDestroy_v2(event)
        return {"ms": round(min(took), 3), "covered": min(took) > self.usec / 2000}

    def coverage(self, context):
        """Returns what is covered, by kind of stream; a refusal is an answer."""
        self.enter(context)
        streams = {"legacy": None, "per_thread": PER_THREAD, "blocking": self.driver.stream(0),
                   "non_blocking": self.driver.stream(1)}
        answer = {}
        for name, stream in streams.items():
            try:
                answer[name] = self.covers(context, stream)
            except Refused as refused:
                answer[name] = {"refused": str(refused)}
                self.driver.cuCtxSynchronize()
        return answer

    def created(self):
        """Returns the coverage in a context of cuCtxCreate."""
        context = self.driver.get(c_void_p, "cuCtxCreate_v2", 0, self.driver.device)
        try:
            return self.coverage(context)
        finally:
            self.driver.cuCtxDestroy_v2(c_void_p(context))
            self.driver.cuCtxSetCurrent(c_void_p(self.driver.context))

    def delays(self, count):
        """Returns microseconds with `count` busy streams: of the call, and from the end of the last kernel
        until the event is seen; and the milliseconds until a kernel on another stream that is submitted
        afterwards has ended, with the event and without it."""
        d, kernels = self.driver, self.enter(self.driver.context)
        streams, other = [d.stream(1) for _ in range(count)], d.stream(1)
        event, after, ends = d.event(NO_TIMING), d.event(NO_TIMING), [d.event(NO_TIMING) for _ in streams]
        call, late, behind = [], [], {True: [], False: []}
        for turn in range(4 if self.sim else 20):
            recorded = turn % 2 == 0
            d.cuCtxSynchronize()
            began = time.perf_counter_ns()
            for stream, end in zip(streams, ends):
                kernels("gcgroup_spin", self.usec, stream=stream)
                d.cuEventRecord(end, stream)
            if recorded:
                call.append(measure.usec(lambda: d.cuCtxRecordEvent(c_void_p(d.context), event)))
            kernels("gcgroup_spin", 1, stream=other)
            d.cuEventRecord(after, other)
            behind[recorded].append((self.seen(after) - began) / 1e6)
            ended = max(self.seen(end) for end in ends)
            if recorded:
                late.append((self.seen(event) - ended) / 1000)
        d.cuCtxSynchronize()
        for stream in (*streams, other):
            d.cuStreamDestroy_v2(stream)
        with_event, without = (round(min(behind[recorded]), 3) for recorded in (True, False))
        return {"call_usec": measure.spread(call), "seen_after_usec": measure.spread(late, 1),
                "kernel_on_another_stream_ms": with_event, "without_the_event_ms": without, "spin_ms": self.usec / 1000}

    def during_a_capture(self):
        """Returns, by mode, the results of recording the context while one of its streams captures, and of
        the end of that capture."""
        d, answer = self.driver, {}
        self.enter(d.context)
        for name, mode in MODES.items():
            stream, event, graph = d.stream(1), d.event(NO_TIMING), c_void_p()
            d.cuStreamBeginCapture_v2(stream, mode)
            record = d.function("cuCtxRecordEvent")(c_void_p(d.context), event)
            end = d.function("cuStreamEndCapture")(stream, byref(graph))
            answer[name] = {"record": d.error(record), "end_of_capture": d.error(end)}
            d.cuStreamDestroy_v2(stream)
        return answer


def held_back(row):
    """Returns whether the event delays later work on another stream."""
    return row["kernel_on_another_stream_ms"] - row["without_the_event_ms"] > row["spin_ms"] / 2


def uncovered(answers):
    """Returns the kinds of streams that are not covered, by context."""
    return [f"{context} {name}" for context, rows in answers.items() for name, row in (rows or {}).items()
            if not row.get("covered")]


def body(sim, facts):
    contexts, questions = Contexts(sim), Questions(facts)
    covered = {"primary": questions.ask("primary", contexts.coverage, contexts.driver.context),
               "cuCtxCreate": questions.ask("created", contexts.created)}
    one = questions.ask("delays_1_stream", contexts.delays, 1)
    many = questions.ask("delays_40_streams", contexts.delays, 40)
    captured = questions.ask("during_a_capture", contexts.during_a_capture)
    missing = uncovered(covered)
    return questions.verdict(
        any(covered.values()) and ("an event of a context DOES NOT COVER " + ", ".join(missing) if missing
                                   else "an event of a context covers all of its streams"),
        one and many and "recording takes usec {:.1f} with 1 stream, {:.1f} with 40".format(
            *(row["call_usec"]["median"] for row in (one, many))),
        one and ("it HOLDS BACK other streams" if held_back(one)
                 else "it holds back no other stream"),
        captured and "captures afterwards: " + ", ".join(
            f"{name} {row['end_of_capture']}" for name, row in captured.items()))


if __name__ == "__main__":
    main(body)
