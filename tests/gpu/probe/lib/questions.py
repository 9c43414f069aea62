"""Runs the questions of a probe; a question that cannot be answered does not affect the others."""
import sys
import traceback

from answer import Skip, sentence


class Questions:
    """Stores in `facts` each answer, or why there is none."""

    def __init__(self, facts):
        self.facts, self.answered, self.open, self.failed = facts, [], [], []

    def ask(self, name, question, *arguments):
        """Returns the answer, or None."""
        try:
            answer = question(*arguments)
        except Skip as reason:
            self.open.append(f"{name}: {reason}")
            self.facts[name] = {"not_possible": str(reason)}
            return None
        except Exception as error:  # A failed question is reported with the answers of the others.
            traceback.print_exc(file=sys.stderr)
            self.failed.append(f"{name}: {sentence(error)}")
            self.facts[name] = {"failed": sentence(error)}
            return None
        self.facts[name] = answer
        self.answered.append(name)
        return answer

    def verdict(self, *words):
        """Returns the probe's verdict: the findings, and the questions without an answer. Skips if there is
        no answer at all, and fails if a question failed."""
        said = "; ".join(word for word in words if word)
        if self.failed:
            raise AssertionError("; ".join(self.failed + [said]))
        if not self.answered:
            raise Skip("; ".join(self.open))
        return said + "".join(f"; not possible here: {reason}" for reason in self.open)
