"""Controls a governed job with echo and cat, and keeps the transcript: limit, refusal, steps, freeze, thaw"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import contextlib
import time

import control
from governing import Counter
from held import Account
from part import STARTS_WITHIN, Skip, has_overhead, job, main, need, require
import evidence

MIB = 1 << 20


def kind(sim):
    """Returns the first kind of job that works here."""
    for name in ("torch", "cupy"):
        with contextlib.suppress(Skip):
            need(name, sim=sim)
            return name
    return "driver"


class Transcript:
    """Writes down what is read, written and answered, as on a terminal."""

    def __init__(self, facts, program):
        self.facts, self.program, self.lines = facts, program, []

    def say(self, line):
        self.lines += line.splitlines()
        self.facts["transcript"] = self.lines

    def cat(self, name, lines=6):
        self.say(f"$ cat {self.program.pid}/{name}")
        content = control.get(self.program.pid, name)
        self.say("\n".join(content.splitlines()[:lines]))
        return content

    def echo(self, value, name):
        self.say(f"$ echo {value} > {self.program.pid}/{name}")
        control.put(self.program.pid, name, value)

    def ask(self, line):
        self.program.tell(line)
        answer = self.program.line()
        self.say(f"job> {line}\n{answer.strip()}")
        return answer

    def steps(self, counter, what, seconds=0.5):
        """Counts the job's steps."""
        before = counter.count
        time.sleep(seconds)
        self.say(f"# {counter.count - before} steps in {seconds} s, {what}")


def body(sim, facts):
    small = 16 if sim else 1024
    account = Account()
    facts["kind"] = chosen = kind(sim)
    with job(chosen) as program:
        program.until("ready", STARTS_WITHIN)
        log = Transcript(facts, program)
        log.say(f"$ gcgroupfs run -- python3 framework.py {chosen} &\n[1] {program.pid}")
        # Memory of the context that is charged later would take from the limit.
        facts["context_is_measured"] = has_overhead(program.pid)
        log.cat("memory.current")
        log.ask("info")
        log.ask(f"alloc {small * MIB}")
        current = int(log.cat("memory.current"))
        log.say(f"# NVML: {account.number(program.pid)}")
        log.echo(current + 2 * small * MIB, "memory.limit")
        log.ask("info")
        require(log.ask(f"alloc {3 * small * MIB}").split()[0] == "oom", "more than the limit was granted")
        require(log.ask(f"alloc {small * MIB}").split()[0] == "allocated", "what fits was refused")
        log.cat("memory.events")
        log.say("job> steps")
        counter = Counter(program)
        counter.go_on()
        log.steps(counter, "running")
        log.cat("gcgroup.stat")
        log.echo(1, "compute.freeze")
        control.until("the job is frozen", lambda: control.flat(program.pid, "gcgroup.events")["frozen"] == "1")
        log.cat("gcgroup.events")
        log.steps(counter, "frozen")
        log.echo(0, "compute.freeze")
        counter.go_on()
        log.steps(counter, "thawed")
        counter.stop()
        log.cat("compute.stat", 12)
        log.say(f"$ gcgroupfs explain {program.pid}\n" + evidence.command(control.GCGROUPFS, "explain", str(program.pid)))
    control.until("the job is listed as ended", lambda: f"{program.pid} " in control.get(None, "exited"))
    log.say("$ head -n 1 exited\n" + control.get(None, "exited").splitlines()[0])
    return f"{len(log.lines)} lines with a {chosen} job; {log.lines[-1][:200]}"


main(body)
