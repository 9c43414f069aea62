"""What the check makes of parts that hang, that leave processes behind, that say nothing; and of machines that tell
little."""
import json
import os
import pathlib
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../shared"), os.path.join(HERE, "../check")]
WORK = tempfile.TemporaryDirectory()
os.environ.setdefault("DIST", "/nowhere")
os.environ["GPU_CHECK_WORK"] = WORK.name
os.mkdir(f"{WORK.name}/parts")

import family
import machine
import run
import table
from answer import Facts
from held import Account, Untold
from program import Program
from results import Results

MIB = 1 << 20


def python(text):
    """A command that runs a text, with what parts have in common at hand."""
    head = f"import sys; sys.path.insert(0, {os.path.join(HERE, '../shared')!r})\n"
    return [sys.executable, "-c", head + textwrap.dedent(text)]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Parts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        family.adopt()

    def setUp(self):
        self.out = tempfile.TemporaryDirectory()
        self.addCleanup(self.out.cleanup)
        self.results = Results(self.out.name)
        for patch in (mock.patch("builtins.print"), mock.patch("daemon.lives", return_value=True)):
            patch.start()
            self.addCleanup(patch.stop)

    def entry(self, text, part=table.Part("some", 0, 30), seconds=60):
        """What becomes of a part with that text."""
        program = pathlib.Path(self.out.name, "part.py")
        program.write_text(textwrap.dedent(text), encoding="utf-8")
        with mock.patch("table.path", return_value=str(program)):
            run.Check(self.results, False, seconds).part(part)
        return json.loads(pathlib.Path(self.out.name, "results.json").read_text(encoding="utf-8"))[part.name]

    def test_a_part_that_hangs_is_ended_with_all_it_started_and_says_where_it_was(self):
        entry = self.entry(f"""
            import subprocess, sys, time
            sys.path.insert(0, {os.path.join(HERE, '../shared')!r})
            from answer import Facts, tell_where_it_ends
            tell_where_it_ends()
            facts = Facts(sys.argv[2])
            facts["pid"] = subprocess.Popen(["setsid", "sleep", "1000"]).pid
            def it_hangs_here():
                time.sleep(1000)
            it_hangs_here()
            """, table.Part("some", 0, 2))
        self.assertEqual((entry["state"], entry["reason"]), ("FAIL", "ran past its limit of 2 s"))
        self.assertIn("it_hangs_here", entry["stderr"])
        self.assertFalse(alive(entry["facts"]["pid"]))
        self.assertNotIn("left_behind", entry)

    def test_a_part_that_ends_leaves_no_process_either(self):
        entry = self.entry("""
            import json, subprocess, sys
            child = subprocess.Popen(["setsid", "sleep", "1000"])
            json.dump({"pid": child.pid}, open(sys.argv[2], "w"))
            print("fine")
            """)
        self.assertEqual((entry["state"], entry["reason"]), ("PASS", "fine"))
        self.assertFalse(alive(entry["facts"]["pid"]))

    def test_a_part_that_dies_without_a_verdict_is_told_by_its_last_word(self):
        entry = self.entry("import os, sys; print('no such thing', file=sys.stderr, flush=True); os.abort()")
        self.assertEqual((entry["state"], entry["reason"]), ("FAIL", "killed by signal 6: no such thing"))

    def test_what_has_no_time_left_is_left_out_and_no_success(self):
        entry = self.entry("print('never')", table.Part("some", 20, 30), seconds=10)
        self.assertEqual(entry["state"], "SKIP")
        self.assertIn("left out: it takes 20 s", entry["reason"])
        self.results.ends("other", "PASS", "well", 1)
        self.assertEqual(self.results.status(), 3)

    def test_what_the_end_of_all_time_cuts_off_has_not_failed(self):
        entry = self.entry("import time; time.sleep(1000)", table.Part("some", 0, 30), seconds=1)
        self.assertEqual(entry["state"], "SKIP")
        self.assertIn("cut off after 1 s", entry["reason"])
        self.assertEqual(self.results.left_out, 1)

    def test_a_daemon_that_died_has_failed_and_another_is_started(self):
        with mock.patch("daemon.lives", return_value=False), mock.patch("daemon.said", return_value="panicked"), \
                mock.patch("run.govern") as govern:
            entry = self.entry("print('fine')")
        self.assertEqual(entry["state"], "PASS")
        self.assertEqual(govern.call_count, 1)
        self.assertEqual(self.results.entries["daemon before some"]["reason"], "the daemon died: panicked")
        self.assertEqual(self.results.status(), 1)

    def test_failures_count_for_more_than_want_of_time(self):
        self.results.ends("one", "PASS", "well", 1)
        self.assertEqual(self.results.status(), 0)
        self.results.lacks_time("two", "no time")
        self.assertEqual(self.results.status(), 3)
        self.results.ends("three", "FAIL", "broken", 1)
        self.assertEqual(self.results.status(), 1)

    def test_every_program_is_in_the_table_and_says_what_it_is(self):
        there = {path.stem for folder in ("check/parts", "probe") for path in pathlib.Path(HERE, "..", folder).glob("*.py")}
        parts = table.PARTS + table.PROBES
        self.assertEqual({part.name for part in parts}, there)
        self.assertEqual(len({part.name for part in parts}), len(parts))
        for part in parts:
            self.assertTrue(table.about(part))
            self.assertLess(part.usual, part.limit)
        self.assertLess(sum(part.usual for part in parts), 500, "they cannot be all of one run any more")

    def test_parts_are_chosen_by_name_behind_the_driver(self):
        self.assertEqual([part.name for part in table.chosen(["vmm", "swap"])], ["driver", "swap", "vmm"])
        with self.assertRaisesRegex(ValueError, "no part vmn"):
            table.chosen(["vmn"])


class Programs(unittest.TestCase):
    def test_a_silent_program_is_ended_and_tells_where_it_was(self):
        with Program(python("""
                import time
                from answer import tell_where_it_ends
                tell_where_it_ends()
                print("ready", flush=True)
                def it_waits_here():
                    time.sleep(1000)
                it_waits_here()
                """)) as program:
            program.until("ready")
            with self.assertRaisesRegex(AssertionError, r"(?s)no answer within 0.2 s: .*it_waits_here"):
                program.line(0.2)

    def test_a_program_that_ended_is_quoted_wherever_that_is_found_out(self):
        with Program(python("import sys; sys.exit('out of luck')")) as program:
            program.process.wait()
            with self.assertRaisesRegex(AssertionError, "it ended: out of luck"):
                program.tell("anything")
            with self.assertRaisesRegex(AssertionError, "it ended: out of luck"):
                program.line()

    def test_lines_are_not_lost_when_several_come_at_once(self):
        with Program(python("print('one\\ntwo\\nthree 3', flush=True); sys.stdin.read()")) as program:
            self.assertEqual(program.line(), "one")
            self.assertEqual(program.ask("what", "three"), ["3"])


class OnFile(unittest.TestCase):
    def test_facts_are_on_file_as_they_are_set(self):
        with tempfile.TemporaryDirectory() as directory:
            facts = Facts(f"{directory}/facts.json")
            facts["one"] = 1
            facts.update(two={"deep": 2})
            self.assertEqual(json.loads(pathlib.Path(facts.path).read_text(encoding="ascii")), {"one": 1, "two": {"deep": 2}})
            facts["two"]["deep"] = 3
            facts.save()
            self.assertEqual(json.loads(pathlib.Path(facts.path).read_text(encoding="ascii"))["two"], {"deep": 3})
            self.assertEqual(os.listdir(directory), ["facts.json"])


class Nvml:
    """What NVML lists, as a test says."""

    def __init__(self, **held):
        self.held = {int(pid[1:]): size for pid, size in held.items()}

    def __call__(self):
        if self.held.get(0):
            raise Untold("NVML is out of order")
        return dict(self.held)


class Accounts(unittest.TestCase):
    def account(self, nvml, same_pids=False):
        return Account(nvml, same_pids, patience=0)

    def untold(self, account, why):
        with self.assertRaisesRegex(Untold, why):
            account.bytes_of(77)
        self.assertIsNone(account.number(77))

    def test_where_pids_are_the_same_nobody_else_is_taken_for_it(self):
        nvml = Nvml()
        account = self.account(nvml, same_pids=True)
        nvml.held = {4000: MIB}
        self.untold(account, "no process that could be it")
        nvml.held = {4000: MIB, 77: 2 * MIB}
        self.assertEqual(account.bytes_of(77), 2 * MIB)
        del nvml.held[77]
        self.assertFalse(account.names(77))

    def test_in_a_namespace_it_is_the_one_that_is_new(self):
        nvml = Nvml(p4000=MIB)
        account = self.account(nvml)
        nvml.held[4711] = 3 * MIB
        self.assertEqual(account.bytes_of(77), 3 * MIB)
        # The association is kept when other processes appear.
        nvml.held[4712] = 5 * MIB
        self.assertEqual(account.bytes_of(77), 3 * MIB)
        self.assertEqual(account.bytes_of(78), 5 * MIB)
        del nvml.held[4711]
        self.assertFalse(account.names(77))

    def test_in_a_namespace_two_new_ones_cannot_be_told_apart_but_by_name(self):
        nvml = Nvml(p4000=MIB)
        account = self.account(nvml)
        nvml.held.update({4711: MIB, 4712: MIB})
        self.untold(account, "which of 2 new processes")
        nvml.held[77] = 9 * MIB
        self.assertEqual(account.bytes_of(77), 9 * MIB)

    def test_one_that_was_there_before_is_never_it(self):
        account = self.account(Nvml(p4000=MIB))
        self.untold(account, "no process that could be it")
        with self.assertRaises(Untold):
            account.names(77)

    def test_a_process_without_a_number_has_none(self):
        nvml = Nvml()
        account = self.account(nvml)
        nvml.held[77] = None
        self.untold(account, "no number")

    def test_an_nvml_that_fails_is_told(self):
        nvml = Nvml(p0=1)
        self.untold(self.account(nvml), "out of order")


class Machines(unittest.TestCase):
    def gpu(self, script):
        """What is known of a machine with that nvidia-smi."""
        with tempfile.TemporaryDirectory() as directory:
            fake = pathlib.Path(directory, "nvidia-smi")
            fake.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            fake.chmod(0o755)
            with mock.patch.dict(os.environ, PATH=f"{directory}:{os.environ['PATH']}"), \
                    mock.patch("machine.PATIENCE", 0.3), mock.patch("machine.kernel_module", return_value="by itself"):
                return machine.gpu()

    def test_nonsense_of_nvidia_smi_is_nobodys_name(self):
        for script in ("echo what", "printf '\\377\\376, \\n'", "exit 9", "exec sleep 1000", "echo 'Failed to initialize NVML'"):
            found = self.gpu(script)
            self.assertEqual((found["gpu"], found["driver"], found["cuda"]), ("by itself", "by itself", ""), script)

    def test_what_nvidia_smi_says_is_taken(self):
        found = self.gpu('case $* in ?*) echo "NVIDIA H200, 580.1, 143771 MiB" ;; *) echo "CUDA Version: 13.0 |" ;; esac')
        self.assertEqual((found["gpu"], found["driver"], found["memory"], found["cuda"]),
                         ("NVIDIA H200", "580.1", "143771 MiB", "13.0"))


if __name__ == "__main__":
    unittest.main()
