"""Measures the host's time of launches: the first of a module that is loaded lazily or eagerly, and the longest of
many."""
import json
import os
import sys
import time

from lib import measure
from lib.cuda import Driver
from lib.questions import Questions
from answer import main
from program import Program


def first():
    """Returns the host's milliseconds to load a module, of its first and second launch, and of the first launch
    of another kernel in it."""
    driver = Driver()
    driver.cuCtxSynchronize()
    free, answer = driver.free_memory(), {}

    def timed(name, body):
        began = time.perf_counter_ns()
        value = body()
        answer[name] = round((time.perf_counter_ns() - began) / 1e6, 3)
        return value

    kernels = timed("load", driver.kernels)
    for name in ("gcgroup_spin", "gcgroup_work"):
        timed(f"{name}_found", lambda: kernels.function(name))
    for name, kernel in (("first", "gcgroup_spin"), ("second", "gcgroup_spin"), ("other_kernel", "gcgroup_work")):
        timed(name, lambda: kernels(kernel, 1))
        driver.cuCtxSynchronize()
    answer["mib_of_memory"] = (free - driver.free_memory()) / (1 << 20)
    return answer


def loaded(way):
    """Returns the answer of `first` in a process with that CUDA_MODULE_LOADING."""
    with Program([sys.executable, os.path.abspath(__file__), "child"], {"CUDA_MODULE_LOADING": way}) as program:
        return json.loads(program.until("{"))


def stalls(sim):
    """Returns the host's microseconds of each of many launches: a few take long, for instance while the queue is
    full."""
    driver = Driver()
    kernels, stream, samples = driver.kernels(), driver.stream(1), []
    launch, prepared = driver.function("cuLaunchKernel"), kernels.prepared("gcgroup_spin", 0, stream=stream)
    for _ in range(1000 if sim else 20_000):
        samples.append(measure.usec(lambda: launch(*prepared)))
    driver.cuCtxSynchronize()
    return measure.spread(samples)


def body(sim, facts):
    questions = Questions(facts)
    ways = {way: questions.ask(way.lower(), loaded, way) for way in ("LAZY", "EAGER")}
    long = questions.ask("launch_usec", stalls, sim)
    return questions.verdict(
        *(row and f"{way}: first launch {row['first']:.2f} ms, second {row['second']:.2f}" for way, row in ways.items()),
        long and f"a launch takes usec {long['median']:.1f}, at most {long['max']:.0f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(first()), flush=True)
    else:
        main(body)
