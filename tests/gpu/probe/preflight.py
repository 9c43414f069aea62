"""Describes kernel, sandbox, permissions, NUMA nodes, limits, driver parameters and libraries, and tries each
system call that hook and daemon need"""
import importlib.metadata
import os

from lib import host, system_calls
from lib.questions import Questions
from answer import main


def packages():
    """Returns the installed Python packages with their versions."""
    return sorted({f"{dist.metadata['Name']} {dist.version}" for dist in importlib.metadata.distributions()})


def all_of_nvidia_smi():
    """Stores `nvidia-smi -q` beside the results. Returns its number of lines, or None."""
    told, folder = host.said("nvidia-smi", "-q"), os.environ.get("GPU_CHECK_OUT")
    if told is None or not folder:
        return None
    with open(f"{folder}/nvidia-smi.txt", "w", encoding="utf-8") as file:
        file.write(told)
    return told.count("\n")


def body(sim, facts):
    """Asks everything; nothing that is missing is a failure."""
    questions = Questions(facts)
    questions.ask("uname", lambda: list(os.uname()))
    calls = questions.ask("system_calls", system_calls.outcomes)
    questions.ask("sandbox", host.sandbox)
    questions.ask("permissions", host.permissions)
    questions.ask("numa", host.numa)
    questions.ask("memory", host.memory)
    questions.ask("limits", host.limits)
    questions.ask("libraries", host.libraries, os.path.join(os.environ.get("DIST", "."), "lib"))
    questions.ask("packages", packages)
    if not sim:
        questions.ask("driver", host.driver)
        questions.ask("nvidia_smi_lines", all_of_nvidia_smi)
    refused = [f"{name}: {row['outcome']}" for name, row in calls.items() if row["outcome"] != "ok"]
    need = system_calls.missing(calls)
    verdict = "every system call works" if not refused else f"refused: {', '.join(refused)}"
    return questions.verdict(verdict, need and f"needed without another way: {', '.join(need)}")


main(body)
