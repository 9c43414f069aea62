"""A probe asks several questions; one that cannot be answered here does not keep the others from it."""
import sys
import traceback

from answer import Skip, sentence


class Questions:
    """Keeps each answer in `facts`, or under the same name why there is none."""

    def __init__(self, facts):
        self.facts, self.answered, self.open, self.failed = facts, [], [], []

    def ask(self, name, question, *arguments):
        """The answer, or None."""
        try:
            answer = question(*arguments)
        except Skip as reason:
            self.open.append(f"{name}: {reason}")
            self.facts[name] = {"not_possible": str(reason)}
            return None
        except Exception as error:  # one broken question is told with the answers of the others
            traceback.print_exc(file=sys.stderr)
            self.failed.append(f"{name}: {sentence(error)}")
            self.facts[name] = {"failed": sentence(error)}
            return None
        self.facts[name] = answer
        self.answered.append(name)
        return answer

    def verdict(self, *words):
        """The probe's line: what was found, and what could not be. Skips if nothing was, fails if something broke."""
        said = "; ".join(word for word in words if word)
        if self.failed:
            raise AssertionError("; ".join(self.failed + [said]))
        if not self.answered:
            raise Skip("; ".join(self.open))
        return said + "".join(f"; not possible here: {reason}" for reason in self.open)
