"""Compares the ledger with NVML's number for the process or, if there is none, for the whole device"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import control
from held import Account, Untold, in_use
from part import Skip, has_overhead, load, main, require

MIB = 1 << 20
KINDS = ("linear", "pitched", "async", "array", "vmm")


class Ledger:
    """Reads what a process is charged and what it holds."""

    def __init__(self, program, account):
        self.program, self.account, self.by_process = program, account, True

    def charged(self):
        """Returns the bytes charged without the context."""
        return (int(control.get(self.program.pid, "memory.current"))
                - int(control.flat(self.program.pid, "memory.stat")["context"]))

    def held(self):
        """Returns the bytes that NVML reports for the process or, if it reports none, for the device."""
        if self.by_process:
            try:
                return self.account.bytes_of(self.program.pid)
            except Untold as reason:
                self.by_process = str(reason)
        return in_use()


def body(sim, facts):
    size, tolerance = (16 if sim else 256) * MIB, (4 if sim else 40) * MIB
    account, rows = Account(), {}
    with load("obey") as program:
        program.until("ready")
        program.ask("launch 1", "launched")
        program.ask("sync", "synchronised")
        facts["context_is_measured"] = has_overhead(program.pid)
        ledger = Ledger(program, account)
        ledger.held()
        for kind in KINDS:
            # The first allocation of a kind may take additional memory.
            program.tell(f"alloc {kind} {MIB}")
            if program.line().split()[0] == "error":
                continue
            before = ledger.charged(), ledger.held()
            program.ask(f"alloc {kind} {size}", "allocated")
            rows[kind] = [ledger.charged() - before[0], ledger.held() - before[1]]
            facts["charged_and_held"] = rows
            program.ask("free all", "freed")
    facts["by"] = "process" if ledger.by_process is True else "device"
    off = {kind: row for kind, row in rows.items() if abs(row[0] - row[1]) > tolerance}
    if facts["by"] == "device":
        facts["why"] = ledger.by_process
        if off:
            raise Skip(f"{ledger.by_process}; differences on the whole device, which other processes may use: {off}")
    require(not off, f"charged and held differ: {off}")
    require(rows, "nothing could be allocated")
    most = max(abs(charged - held) for charged, held in rows.values())
    return f"of {len(rows)} kinds of {size // MIB} MiB at most {most / MIB:.1f} MiB are charged differently than NVML reports" + (
        "" if facts["by"] == "process" else f" (of the whole device: {ledger.by_process})")


main(body)
