"""Measures how many bytes the device loses for blocks of each size, by cuMemGetInfo and NVML: the page size, and
from which size on a block has pages of its own"""
from lib.cuda import Driver
from lib.nvml import Nvml, Refused, bus_id
from lib.questions import Questions
from answer import Skip, main

KIB, MIB = 1 << 10, 1 << 20
BLOCKS = 64
SIZES = (256, 4 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, MIB, MIB + 1, MIB + 512 * KIB, 2 * MIB, 2 * MIB + 1, 3 * MIB,
         5 * MIB + 1)


class Device:
    """Reads the bytes in use on the device."""

    def __init__(self):
        self.driver = Driver()
        try:
            self.nvml = Nvml(bus_id(self.driver))
            self.nvml.memory()
        except (Skip, Refused):
            self.nvml = None

    def lost(self):
        """Returns what the driver counts as no longer free, negated, and what NVML counts as used."""
        return -self.driver.free_memory(), self.nvml.memory().used if self.nvml else 0


def blocks(device, size):
    """Allocates blocks of a size and frees them. Returns the bytes lost by both counts, those still lost afterwards,
    the number of distinct pages of 2 MiB that the addresses touch, and the distances between neighbours."""
    before = device.lost()
    addresses = sorted(device.driver.alloc(size) for _ in range(BLOCKS))
    held = device.lost()
    for address in addresses:
        device.driver.cuMemFree_v2(address)
    after = device.lost()
    pages = {page for address in addresses for page in range(address >> 21, (address + size - 1 >> 21) + 1)}
    steps = sorted({b - a for a, b in zip(addresses, addresses[1:])})
    by = lambda counts: {"driver": counts[0] - before[0], "nvml": counts[1] - before[1] if device.nvml else None}
    return {"requested": size * BLOCKS, "held": by(held), "kept_after_free": by(after), "pages_of_2_mib": len(pages),
            "distances": steps[:4] + steps[-2:]}


def body(sim, facts):
    questions, device = Questions(facts), Device()
    rows = {size: questions.ask(f"blocks_of_{size}", blocks, device, size) for size in SIZES}
    return questions.verdict(f"{BLOCKS} blocks of each size, MiB lost for MiB requested: " + ", ".join(
        f"{size}: {row['held']['driver'] / MIB:.1f} for {row['requested'] / MIB:.1f}, {row['pages_of_2_mib']} pages"
        for size, row in rows.items() if row))


main(body)
