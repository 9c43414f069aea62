"""Runs the test kernels of gcgroup-load and computes their expected results."""
from .cuda import MIB

WORD = 4


class Sums:
    """Fills memory with known words, and sums them on the device."""

    def __init__(self, driver):
        self.driver, self.kernels = driver, driver.kernels()
        self.out = driver.alloc(MIB)
        self.grid = 8 * driver.attribute(16)

    def fill(self, address, size, value, stream=None):
        """Sets word[i] = value + i."""
        self.kernels("gcgroup_fill", address, size // WORD, value, grid=self.grid, block=256, stream=stream)

    def add(self, address, size, out, stream=None):
        """Adds the sum of the memory to the 64-bit word at `out`."""
        self.kernels("gcgroup_checksum", address, size // WORD, out, grid=self.grid, block=256, stream=stream)

    def sum(self, address, size):
        """Returns the sum of the memory."""
        self.driver.cuMemsetD8_v2(self.out, 0, 8)
        self.add(address, size, self.out)
        self.driver.cuCtxSynchronize()
        return self.driver.read_words(self.out, 1)[0]

    def holds(self, address, size, value):
        """Returns whether the memory holds what `fill` writes with that value."""
        return self.sum(address, size) == filled(size, value)


def filled(size, value):
    """Returns the sum of what `fill` writes, for values that do not wrap at 32 bits."""
    n = size // WORD
    return (value * n * (n + 1) // 2 + (n - 1) * n * (n + 1) // 3) % (1 << 64)


def constant(size, value):
    """Returns the sum of equal words."""
    n = size // WORD
    return value * n * (n + 1) // 2 % (1 << 64)
