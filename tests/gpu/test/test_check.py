"""Tests how the check handles parts that hang, leave processes behind or print nothing, and machines that
report little about themselves."""
import contextlib
import errno
import json
import os
import pathlib
import signal
import sys
import tarfile
import tempfile
import textwrap
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, folder) for folder in ("../shared", "../check", "../probe")]
WORK = tempfile.TemporaryDirectory()
os.environ.setdefault("DIST", "/nowhere")
os.environ["GPU_CHECK_WORK"] = WORK.name
os.mkdir(f"{WORK.name}/parts")

import family
import machine
import results
import run
import table
from answer import Facts, Skip
from held import Account, Untold
from lib import host, system_calls
from program import Program
from results import Results

MIB = 1 << 20


def python(text):
    """Returns the command that runs a Python text, with the parts' shared modules importable."""
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
        """Runs a part with that text, and returns its entry in the results."""
        program = pathlib.Path(self.out.name, "part.py")
        program.write_text(textwrap.dedent(text), encoding="utf-8")
        with mock.patch("table.path", return_value=str(program)):
            run.Check(self.results, False, seconds).part(part)
        return json.loads(pathlib.Path(self.out.name, "results.json").read_text(encoding="utf-8"))[part.name]

    def test_hanging_part_is_ended_and_prints_its_stack(self):
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

    def test_ended_part_leaves_no_process(self):
        entry = self.entry("""
            import json, subprocess, sys
            child = subprocess.Popen(["setsid", "sleep", "1000"])
            json.dump({"pid": child.pid}, open(sys.argv[2], "w"))
            print("fine")
            """)
        self.assertEqual((entry["state"], entry["reason"]), ("PASS", "fine"))
        self.assertFalse(alive(entry["facts"]["pid"]))

    def test_killed_part_is_reported_with_its_last_line(self):
        entry = self.entry("import os, sys; print('no such thing', file=sys.stderr, flush=True); os.abort()")
        self.assertEqual((entry["state"], entry["reason"]), ("FAIL", "killed by signal 6: no such thing"))

    def test_part_without_time_is_left_out_without_success(self):
        entry = self.entry("print('never')", table.Part("some", 20, 30), seconds=10)
        self.assertEqual(entry["state"], "SKIP")
        self.assertIn("left out: the part takes 20 s", entry["reason"])
        self.results.ends("other", "PASS", "well", 1)
        self.assertEqual(self.results.status(), 3)

    def test_part_cut_off_by_the_time_limit_has_not_failed(self):
        entry = self.entry("import time; time.sleep(1000)", table.Part("some", 0, 30), seconds=1)
        self.assertEqual(entry["state"], "SKIP")
        self.assertIn("cut off after 1 s", entry["reason"])
        self.assertEqual(self.results.left_out, 1)

    def test_dead_daemon_is_a_failure_and_is_replaced(self):
        with mock.patch("daemon.lives", return_value=False), mock.patch("daemon.said", return_value="panicked"), \
                mock.patch("run.govern") as govern:
            entry = self.entry("print('fine')")
        self.assertEqual(entry["state"], "PASS")
        self.assertEqual(govern.call_count, 1)
        self.assertEqual(self.results.entries["daemon before some"]["reason"], "the daemon died: panicked")
        self.assertEqual(self.results.status(), 1)

    def test_failures_take_precedence_over_lack_of_time(self):
        self.results.ends("one", "PASS", "well", 1)
        self.assertEqual(self.results.status(), 0)
        self.results.lacks_time("two", "no time")
        self.assertEqual(self.results.status(), 3)
        self.results.ends("three", "FAIL", "broken", 1)
        self.assertEqual(self.results.status(), 1)

    def test_every_program_is_in_the_table_and_described(self):
        there = {path.stem for folder in ("check/parts", "probe") for path in pathlib.Path(HERE, "..", folder).glob("*.py")}
        parts = table.PARTS
        self.assertEqual({part.name for part in parts}, there)
        self.assertEqual(len({part.name for part in parts}), len(parts))
        for part in parts:
            self.assertTrue(table.about(part))
            self.assertLess(part.usual, part.limit)

    def test_plans_fit_into_their_time(self):
        for name, plan in table.PLANS.items():
            parts = [table.named(part) for part in plan.parts]
            self.assertEqual(len(set(parts)), len(parts), name)
            self.assertLessEqual(sum(part.usual for part in parts), plan.seconds, name)
            self.assertFalse(set(parts) & set(table.BY_NAME), "changes a setting of the device")
        otherwise = [table.named(part).usual for part in table.OTHERWISE]
        self.assertLessEqual(sum(otherwise), 160)

    def test_most_important_figures_come_first(self):
        plan, seconds = table.PLANS["figures"], 0
        for name in plan.parts:
            seconds += table.named(name).usual
            if name == "overhead_driver":
                break
        self.assertLessEqual(seconds, 230)

    def options(self, *words):
        with mock.patch.object(sys, "argv", ["gpu-check.sh", *words]), mock.patch("sys.stderr"):
            given = run.arguments()
        return given.plan, given.seconds, given.outdir, [part.name for part in given.parts]

    def test_plans_are_chosen_on_the_command_line(self):
        first, figures = (list(table.PLANS[name].parts) for name in ("first", "figures"))
        self.assertEqual(self.options(), ("first", 285, "gpu-check", first))
        self.assertEqual(self.options("--plan", "first", "out"), ("first", 285, "out", first))
        self.assertEqual(self.options("--plan", "figures"), ("figures", 440, "gpu-check", figures))
        self.assertEqual(self.options("--plan", "figures", "345", "out"), ("figures", 345, "out", figures))
        self.assertEqual(self.options("--plan", "again", "swap,vmm", "out"),
                         ("again", 240, "out", ["driver", "vmm", "swap", "transcript"]))
        self.assertEqual(self.options("--parts", "swap", "out"), (None, 45, "out", ["driver", "swap"]))
        for words in (["--plan", "again"], ["--plan", "again", "swop"], ["--plan", "second"], ["one", "two"],
                      ["--plan", "figures", "5", "out", "more"], ["--failed-in", "/nowhere"]):
            with self.assertRaises(SystemExit, msg=words):
                self.options(*words)

    def test_summary_fits_into_the_end_of_the_output(self):
        for number in range(40):
            pathlib.Path(self.out.name, "part.err").write_text("x" * 5000, encoding="utf-8")
            self.results.ends(f"part_{number}", "FAIL", "y" * 2000, 1, stem=f"{self.out.name}/part")
        text = self.results.summary()
        self.assertLessEqual(len(text), results.SUMMARY)
        for number in range(40):
            self.assertIn(f"FAIL part_{number}: yyy", text)

    def test_plan_keeps_one_archive_and_one_file_after_each_part(self):
        with tempfile.TemporaryDirectory() as out:
            kept = Results(self.out.name, f"{out}/first")
            pathlib.Path(self.out.name, "machine.json").write_text('{"gpu": "none"}', encoding="utf-8")
            kept.ends("vmm", "FAIL", "so", 1)
            self.assertEqual(sorted(os.listdir(out)), ["first.json", "first.tgz"])
            with tarfile.open(f"{out}/first.tgz") as archive:
                self.assertIn("first/results.json", archive.getnames())
            self.assertEqual(results.stored(f"{out}/first.json")["machine"], {"gpu": "none"})
            self.assertEqual(results.failed([f"{out}/first.json"]), ["vmm"])

    def test_parts_are_chosen_by_name_after_the_driver(self):
        self.assertEqual([part.name for part in table.chosen(["vmm", "swap"])], ["driver", "vmm", "swap"])
        self.assertEqual(table.chosen(["facts"]), table.FACTS)
        self.assertEqual([part.name for part in table.chosen(["product", "vmm"])[:2]], ["driver", "vmm"])
        with self.assertRaisesRegex(ValueError, "no part vmn"):
            table.chosen(["vmn"])


    def test_parts_after_a_failing_simplest_program_are_skipped(self):
        check = run.Check(self.results, False, 60)
        program = pathlib.Path(self.out.name, "part.py")
        program.write_text("raise SystemExit('no room')", encoding="utf-8")
        with mock.patch("table.path", return_value=str(program)):
            for part in (*table.SIMPLEST[:1], table.PRODUCT[-1]):
                check.part(part)
            program.write_text("print('fine')", encoding="utf-8")
            check.part(table.FACTS[-1])
        states = {name: entry["state"] for name, entry in self.results.entries.items()}
        self.assertEqual(states, {"interception_ctypes": "FAIL", "priority": "SKIP", table.FACTS[-1].name: "PASS"})
        self.assertIn("interception_ctypes: ended with 1: no room", self.results.entries["priority"]["reason"])

    def test_failed_parts_of_a_run_are_named(self):
        for name, state in (("swap", "FAIL"), ("vmm", "PASS"), ("daemon before swap", "FAIL"), ("nvml", "SKIP")):
            self.results.ends(name, state, "so", 0)
        self.assertEqual(results.failed([self.out.name]), ["swap"])
        with self.assertRaises(OSError):
            results.failed(["/nowhere"])


class Evidence(unittest.TestCase):
    """Runs programs that fail, with a debugger that prints its arguments."""

    def setUp(self):
        self.out = tempfile.TemporaryDirectory()
        self.addCleanup(self.out.cleanup)
        debugger = pathlib.Path(self.out.name, "cuda-gdb")
        debugger.write_text('#!/bin/sh\necho "debugger $*"\ncat\n', encoding="utf-8")
        debugger.chmod(0o755)
        patch = mock.patch.dict(os.environ, PATH=f"{self.out.name}:{os.environ['PATH']}",
                                GPU_CHECK_OUT=self.out.name, GPU_CHECK_PART="some")
        patch.start()
        self.addCleanup(patch.stop)

    def found(self, pattern):
        """Returns the content of the one file of evidence whose name matches."""
        (path,) = pathlib.Path(self.out.name, "evidence/some").glob(pattern)
        return path.read_text(encoding="utf-8")

    def test_stacks_of_a_silent_program_are_taken_while_it_lives(self):
        with self.assertRaises(AssertionError), Program(python("import time; time.sleep(1000)")) as program:
            program.line(0.2)
        text = self.found(f"process-{program.pid}.txt")
        self.assertIn("no answer within 0.2 s", text)
        self.assertIn(f"debugger -batch -p {program.pid}", text)
        self.assertIn("wchan", text)
        self.assertIn("State:", text)
        self.found("control-files.txt")

    def test_evidence_of_a_failed_claim_is_taken_before_the_program_is_killed(self):
        with self.assertRaises(AssertionError), Program(python("print('up', flush=True); input()")) as program:
            program.until("up")
            raise AssertionError("the claim is wrong")
        self.assertIn("the claim is wrong", self.found("process-*.txt"))

    def test_crashed_program_runs_once_more_under_the_debugger(self):
        crash = python("import os, sys; print(sys.stdin.readline(), flush=True); os.kill(os.getpid(), 11)")
        with self.assertRaises(AssertionError), Program(crash) as program:
            program.tell("launch 1")
            program.until("launch")
            program.process.wait()
            program.until("launched")
        text = self.found("crash-*.txt")
        self.assertIn("-ex run", text)
        self.assertTrue(text.rstrip().endswith("launch 1\n\n(exit status 0)"), text)

    def test_skipped_and_successful_programs_leave_no_evidence(self):
        for error in (Skip("no such thing"), None):
            with contextlib.suppress(Skip), Program(python("input()")):
                if error:
                    raise error
        self.assertFalse(os.path.exists(f"{self.out.name}/evidence"))


class Preflight(unittest.TestCase):
    def test_refused_killed_and_hanging_calls_are_told_apart(self):
        def refused():
            raise OSError(errno.EPERM, "no")

        outcomes = [system_calls.outcome(body) for body in (
            lambda: None, refused, lambda: os.kill(os.getpid(), signal.SIGSYS), lambda: 1 // 0,
            lambda: signal.raise_signal(signal.SIGALRM))]
        self.assertEqual(outcomes, ["ok", "EPERM", "killed by SIGSYS", "ZeroDivisionError: integer division or modulo by zero",
                                    "hangs"])

    def test_only_calls_without_another_way_are_missing(self):
        found = {name: {"needed_by": needed, "outcome": "EPERM"} for name, needed, _ in system_calls.CALLS}
        missing = system_calls.missing(found)
        self.assertIn("memfd_create and seals", missing)
        self.assertNotIn("FUSE mount", missing)
        self.assertEqual(system_calls.missing({"x": {"needed_by": "hook", "outcome": "ok"}}), [])

    def test_host_is_described_without_an_error(self):
        for describe in (host.sandbox, host.permissions, host.numa, host.memory, host.limits, host.driver):
            self.assertTrue(json.dumps(describe()))
        self.assertIn("glibc", host.libraries("/nowhere")["glibc"])


class Programs(unittest.TestCase):
    def test_silent_program_is_ended_and_prints_its_stack(self):
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

    def test_stderr_of_an_ended_program_is_quoted(self):
        with Program(python("import sys; sys.exit('out of luck')")) as program:
            program.process.wait()
            with self.assertRaisesRegex(AssertionError, "the program ended: out of luck"):
                program.tell("anything")
            with self.assertRaisesRegex(AssertionError, "the program ended: out of luck"):
                program.line()

    def test_lines_that_arrive_together_are_kept(self):
        with Program(python("print('one\\ntwo\\nthree 3', flush=True); sys.stdin.read()")) as program:
            self.assertEqual(program.line(), "one")
            self.assertEqual(program.ask("what", "three"), ["3"])


class OnFile(unittest.TestCase):
    def test_facts_are_stored_when_set(self):
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
    """Returns the processes that a test lists, in place of NVML."""

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

    def test_same_pid_namespace_identifies_by_pid(self):
        nvml = Nvml()
        account = self.account(nvml, same_pids=True)
        nvml.held = {4000: MIB}
        self.untold(account, "no process that can be this one")
        nvml.held = {4000: MIB, 77: 2 * MIB}
        self.assertEqual(account.bytes_of(77), 2 * MIB)
        del nvml.held[77]
        self.assertFalse(account.names(77))

    def test_other_namespace_identifies_the_new_process(self):
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

    def test_two_new_processes_are_told_apart_only_by_pid(self):
        nvml = Nvml(p4000=MIB)
        account = self.account(nvml)
        nvml.held.update({4711: MIB, 4712: MIB})
        self.untold(account, "2 new processes")
        nvml.held[77] = 9 * MIB
        self.assertEqual(account.bytes_of(77), 9 * MIB)

    def test_earlier_process_is_never_identified(self):
        account = self.account(Nvml(p4000=MIB))
        self.untold(account, "no process that can be this one")
        with self.assertRaises(Untold):
            account.names(77)

    def test_process_without_memory_number_is_reported(self):
        nvml = Nvml()
        account = self.account(nvml)
        nvml.held[77] = None
        self.untold(account, "no memory for the process")

    def test_failing_nvml_is_reported(self):
        nvml = Nvml(p0=1)
        self.untold(self.account(nvml), "out of order")


class Machines(unittest.TestCase):
    def gpu(self, script):
        """Describes a machine with that nvidia-smi."""
        with tempfile.TemporaryDirectory() as directory:
            fake = pathlib.Path(directory, "nvidia-smi")
            fake.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            fake.chmod(0o755)
            with mock.patch.dict(os.environ, PATH=f"{directory}:{os.environ['PATH']}"), \
                    mock.patch("machine.PATIENCE", 0.3), mock.patch("machine.kernel_module", return_value="by itself"):
                return machine.gpu()

    def test_invalid_nvidia_smi_output_is_ignored(self):
        for script in ("echo what", "printf '\\377\\376, \\n'", "exit 9", "exec sleep 1000", "echo 'Failed to initialize NVML'"):
            found = self.gpu(script)
            self.assertEqual((found["gpu"], found["driver"], found["cuda"]), ("by itself", "by itself", ""), script)

    def test_valid_nvidia_smi_output_is_used(self):
        found = self.gpu('case $* in ?*) echo "NVIDIA H200, 580.1, 143771 MiB" ;; *) echo "CUDA Version: 13.0 |" ;; esac')
        self.assertEqual((found["gpu"], found["driver"], found["memory"], found["cuda"]),
                         ("NVIDIA H200", "580.1", "143771 MiB", "13.0"))


if __name__ == "__main__":
    unittest.main()
