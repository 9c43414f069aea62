"""Checks whether the time slice of a process's channel group changes its share of the device, and whether a
running kernel can be preempted, by the shares of two competing kernels.

Runs two processes of the probe's own, each of which names only its own objects to the kernel driver. Stops at
the first refusal. Settings are restored, and end with the process."""
import ctypes
import json
import os
import sys
import time

from lib import measure
from lib.questions import Questions
from lib.rival import Lead, Rival, serve, together
from lib.turns import shares
from lib.watch import Stop, Watch
from answer import Skip, main

HOLD_MS = 150


class Grouped(Rival):
    """A rival that knows its channel groups."""

    def __init__(self):
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Skip(f"no driver: {error}") from error
        self.watch, self.action = Watch(), None
        self.watch.start()
        super().__init__()
        self.driver.cuCtxSynchronize()
        descriptors = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                       if os.path.islink(f"/proc/self/fd/{name}")}
        if "/dev/nvidiactl" not in descriptors:
            raise Skip("this driver has no /dev/nvidiactl open")
        if not self.watch.groups():
            raise Skip("no channel group of the process was seen")

    def stopping(self, action):
        """Returns the answer, or the refusal."""
        try:
            return action()
        except Stop as refusal:
            return {"refused": str(refusal)}

    def do_groups(self):
        """Answers the groups and their time slices."""
        return "groups " + json.dumps(self.stopping(lambda: [
            {"engine": group["engine"], "channels": len(group["channels"]), "usec": self.watch.timeslice(group)}
            for group in self.watch.groups()]))

    def do_slice(self, usec):
        """Sets the time slice of all groups; answers the values read back, and the microseconds of each call."""
        def set_all():
            took = [measure.usec(lambda: self.watch.set_timeslice(group, int(usec))) for group in self.watch.groups()]
            return {"now": [self.watch.timeslice(group) for group in self.watch.groups()], "call_usec": took}
        return "sliced " + json.dumps(self.stopping(set_all))

    def preempt(self):
        """Preempts each group five times while a kernel runs."""
        took = []
        for _ in range(5):
            time.sleep(0.03)
            took.append(measure.usec(lambda: [self.watch.preempt(group) for group in self.watch.groups()]))
        return {"call_usec": took}

    def hold(self):
        """Disables the channels for HOLD_MS; they are enabled again in any case."""
        held, took = [], {}
        time.sleep(0.05)
        try:
            for group in self.watch.groups():
                took["off_usec"] = measure.usec(lambda: self.watch.enable(group, False))
                held.append(group)
            time.sleep(HOLD_MS / 1000)
        finally:
            for group in held:
                took["on_usec"] = measure.usec(lambda: self.watch.enable(group, True))
        return took

    def while_it_runs(self):
        if self.action:
            self.result = self.stopping(self.action)

    def do_during(self, what, milliseconds):
        """Runs `stamps` with an action meanwhile."""
        self.action = {"preempt": self.preempt, "hold": self.hold}[what]
        text = self.do_stamps(milliseconds)
        self.action = None
        return "during " + json.dumps({"did": self.result, "run": json.loads(text.split(" ", 1)[1])})


def competing(leads, milliseconds=1000):
    """Returns the shares of two kernels at once, and the work of both."""
    runs = [json.loads(text) for text in together(leads, f"stamps {milliseconds}", "stamps")]
    rates = [text.split() for text in together(leads, f"work {milliseconds}", "work")]
    rates = [float(done) / float(took) for done, took in rates]
    seen = shares(runs)
    return {"share": [process["share"] for process in seen["processes"]],
            "turn_usec": [process["turn_usec"] for process in seen["processes"]],
            "work_share": [rate / sum(rates) for rate in rates]}


class Slices:
    """Asks the questions until one is refused."""

    def __init__(self, one, other):
        self.one, self.leads, self.refusal = one, (one, other), None

    def asked(self, line, answer):
        """Returns the first process's answer, and remembers a refusal."""
        if self.refusal:
            raise Skip(f"not asked after {self.refusal}")
        value = json.loads(self.one.ask(line, answer))
        if isinstance(value, dict):
            refusal = value.get("refused") or (value.get("did") or {}).get("refused")
            self.refusal = self.refusal or refusal
        return value

    def read(self):
        """Returns the groups of the first process."""
        return self.asked("groups", "groups")

    def effect(self, groups):
        """Returns each share with the original slice, a slice eight times as long, and an eighth of it."""
        usec = groups[0]["usec"]
        rows = {"as_it_was": {"usec": usec, **competing(self.leads)}}
        try:
            for name, wanted in (("longer", usec * 8), ("shorter", max(usec // 8, 1))):
                row = self.asked(f"slice {wanted}", "sliced")
                rows[name] = {"wanted": wanted, **row}
                if self.refusal:
                    break
                rows[name].update(competing(self.leads))
        finally:
            if not self.refusal:
                rows["set_back"] = self.asked(f"slice {usec}", "sliced")
        return rows

    def during(self, what, milliseconds):
        """Returns how an action affects a kernel that runs alone: its longest gaps in microseconds."""
        answer = self.asked(f"during {what} {milliseconds}", "during")
        run = answer["run"]
        gaps = sorted(((after - before) / 1000 for before, after in run["gaps"]), reverse=True)
        return {**answer["did"], "gaps": run["seen"], "longest_usec": gaps[:8]}


def judge(questions, slices):
    """Asks all questions and returns the verdict."""
    groups = questions.ask("groups", slices.read)
    if not isinstance(groups, list):
        return questions.verdict(f"refused: {slices.refusal}" if slices.refusal else "")
    rows = questions.ask("effect", slices.effect, groups) or {}
    preempted = questions.ask("preempt", slices.during, "preempt", 400) or {}
    held = questions.ask("hold", slices.during, "hold", 500) or {}
    questions.facts["refused"] = slices.refusal
    before, after = (rows.get(name, {}).get("share", [None])[0] for name in ("as_it_was", "longer"))
    return questions.verdict(
        f"{len(groups)} channel groups of {groups[0]['usec']} usec",
        slices.refusal and f"stopped at a refusal: {slices.refusal}",
        after is not None and "a slice eight times as long {}: its part goes from {:.2f} to {:.2f}".format(
            "has an effect" if after - before > 0.15 else "has NO effect", before, after),
        "call_usec" in preempted and "preempting takes {:.0f} usec, a running kernel loses {:.0f}".format(
            min(preempted["call_usec"]), max(preempted["longest_usec"], default=0)),
        "off_usec" in held and "a running kernel {} while its channels are off".format(
            "stands still" if max(held["longest_usec"], default=0) > HOLD_MS * 800 else "GOES ON"))


def body(sim, facts):
    with Lead(__file__, "child") as one, Lead(__file__, "child") as other:
        for lead in (one, other):
            lead.ask("ready", "ready")
        return judge(Questions(facts), Slices(one, other))


if __name__ == "__main__":
    serve(Grouped) if sys.argv[1:] == ["child"] else main(body)
