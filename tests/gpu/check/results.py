"""Reports the result of each part: prints a line when the part ends, and rewrites a results file atomically."""
import json
import os
import tarfile

TAIL = 3000
# Characters of the summary, so that the end of the output suffices to decide what to do next.
SUMMARY, LINE = 12_000, 300


def text(path):
    """Returns the content of a file, or "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def stored(path):
    """Returns the machine and the parts of a run: of a plan's JSON file, or of a directory. Raises OSError or
    ValueError if there are none."""
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    with open(f"{path}/results.json", encoding="utf-8") as file:
        parts = json.load(file)
    return {"machine": json.loads(text(f"{path}/machine.json") or "{}"), "parts": parts}


def failed(directories):
    """Returns the names of the parts that failed in the results in these directories. Raises OSError or
    ValueError if there are none."""
    names = []
    for directory in directories:
        names += [name for name, entry in stored(directory)["parts"].items() if entry["state"] == "FAIL"]
    return [name for name in names if " " not in name and name != "daemon"]


class Results:
    """Writes `results.json` and `log.txt` in a directory, both from scratch. `stem`: also keeps `STEM.json` with machine
    and parts, and all of the directory in `STEM.tgz`."""

    def __init__(self, directory, stem=None):
        self.directory, self.stem = directory, stem
        self.path, self.log = f"{directory}/results.json", f"{directory}/log.txt"
        self.entries, self.left_out = {}, 0
        open(self.log, "w", encoding="utf-8").close()
        self.save()

    def begins(self, name, **facts):
        """Stores the entry that remains if the check is ended while the part runs."""
        self.entries[name] = {"state": "SKIP", "reason": "the check was ended while this ran", "seconds": 0, "facts": {}, **facts}
        self.save()

    def ends(self, name, state, reason, seconds, stem=None, **facts):
        """Stores and prints the result of a part, with the numbers and the end of the stderr of a program
        that wrote both to files named `stem`."""
        entry = {"state": state, "reason": reason, "seconds": round(seconds, 1), **facts}
        numbers, said = (text(f"{stem}.{kind}").strip() if stem else "" for kind in ("json", "err"))
        try:
            entry["facts"] = json.loads(numbers or "{}")
        except ValueError:
            entry["facts"] = {}
        if said and state != "PASS":
            entry["stderr"] = said[-TAIL:]
        self.entries[name] = entry
        self.save()
        self.say(f"{state} {name}: {reason} ({seconds:.1f} s)")
        self.archive()

    def lacks_time(self, name, reason, **facts):
        """Records a part that was left out or cut off because the time was over: the part is skipped, and the
        check does not succeed."""
        self.left_out += 1
        self.ends(name, "SKIP", reason, facts.pop("seconds", 0), **facts)

    def save(self):
        """Replaces the results file."""
        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            json.dump(self.entries, file, indent=1)
        os.replace(f"{self.path}.new", self.path)

    def say(self, line):
        """Prints a line and appends it to the log."""
        print(line, flush=True)
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def quote(self, what, path):
        """Appends the end of a file to the log."""
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"--- {what}\n{text(path)[-20_000:]}")

    def archive(self):
        """Replaces the archive and its JSON file, for a run that is cut off."""
        if not self.stem:
            return
        with tarfile.open(f"{self.stem}.tgz.new", "w:gz") as archive:
            archive.add(self.directory, os.path.basename(self.stem))
        os.replace(f"{self.stem}.tgz.new", f"{self.stem}.tgz")
        with open(f"{self.stem}.json.new", "w", encoding="utf-8") as file:
            json.dump(stored(self.directory), file, indent=1)
        os.replace(f"{self.stem}.json.new", f"{self.stem}.json")

    def summary(self):
        """Returns a line for each part, and the end of the stderr of those that failed, in SUMMARY characters."""
        most = min(LINE, SUMMARY // (len(self.entries) + 1) - 20)
        lines = [f"{entry['state']} {name}: {entry['reason']}"[:most] + f" ({entry['seconds']} s)"
                 for name, entry in self.entries.items()]
        said = [(name, entry["stderr"]) for name, entry in self.entries.items()
                if entry["state"] == "FAIL" and entry.get("stderr")]
        room = SUMMARY - len("\n".join(lines)) - 200
        for name, text in said:
            share = max(room // len(said), 0)
            lines += [f"--- {name}", text[-share:]] if share > 40 else []
        return "\n".join(lines)[-SUMMARY:]

    def status(self, no_driver=None):
        """Prints the summary. Returns 0 if all is well, 1 if a part failed or none passed on a GPU, 3 if the
        time did not suffice."""
        states = [entry["state"] for entry in self.entries.values()]
        line = ", ".join(f"{states.count(state)} {state}" for state in ("PASS", "FAIL", "SKIP"))
        if self.stem:
            self.say(f"=== summary\n{self.summary()}")
        self.say(line + (f"; {self.left_out} left out for lack of time: run them with --parts" if self.left_out else ""))
        if no_driver:
            self.say(f"nothing was checked on a GPU: {no_driver}")
        if no_driver or "FAIL" in states or "PASS" not in states:
            return 1
        return 3 if self.left_out else 0
