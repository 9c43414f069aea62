"""What came of each part: a line on stdout as it ends, and a file that is whole whenever it is read."""
import json
import os

TAIL = 3000


def text(path):
    """A file's text, or none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class Results:
    """`results.json` and `log.txt` in a directory, both begun anew."""

    def __init__(self, directory):
        self.path, self.log = f"{directory}/results.json", f"{directory}/log.txt"
        self.entries, self.left_out = {}, 0
        open(self.log, "w", encoding="utf-8").close()
        self.save()

    def begins(self, name, **facts):
        """Whoever ends the check by force from now on leaves this behind."""
        self.entries[name] = {"state": "SKIP", "reason": "the check was ended while this ran", "seconds": 0, "facts": {}, **facts}
        self.save()

    def ends(self, name, state, reason, seconds, stem=None, **facts):
        """Its end, with the numbers and the last of stderr of a program that kept both at `stem`."""
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

    def lacks_time(self, name, reason, **facts):
        """It is left out, or cut off, for want of time: no result, and no success of the whole."""
        self.left_out += 1
        self.ends(name, "SKIP", reason, facts.pop("seconds", 0), **facts)

    def save(self):
        """Replaces the file."""
        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            json.dump(self.entries, file, indent=1)
        os.replace(f"{self.path}.new", self.path)

    def say(self, line):
        """For who looks on, and for the log."""
        print(line, flush=True)
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def quote(self, what, path):
        """Ends the log with the last of a file."""
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"--- {what}\n{text(path)[-20_000:]}")

    def status(self):
        """Says what all comes to; 0 if all is well, 1 if something failed or nothing passed, 3 if time was wanting."""
        states = [entry["state"] for entry in self.entries.values()]
        line = ", ".join(f"{states.count(state)} {state}" for state in ("PASS", "FAIL", "SKIP"))
        self.say(line + (f"; {self.left_out} for want of time: --parts runs them by themselves" if self.left_out else ""))
        if "FAIL" in states or "PASS" not in states:
            return 1
        return 3 if self.left_out else 0
