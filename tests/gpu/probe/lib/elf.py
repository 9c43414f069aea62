"""Reads the dynamic symbols and relocations of a loaded 64-bit little-endian library from its section
headers."""
import struct

RELA, DYNSYM = 4, 11
UNDEFINED = 0


class Elf:
    """Reads one library file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = file.read()
        if self.bytes[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path}: not a 64-bit little-endian ELF file")
        (self.machine,) = struct.unpack_from("<H", self.bytes, 18)
        sections, segments = (struct.unpack_from("<Q", self.bytes, at)[0] for at in (0x28, 0x20))
        size, count = struct.unpack_from("<HH", self.bytes, 0x3A)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", self.bytes, sections + size * i) for i in range(count)]
        entry, programs = struct.unpack_from("<HH", self.bytes, 0x36)
        loads = (struct.unpack_from("<IIQQQQQQ", self.bytes, segments + entry * i) for i in range(programs))
        self.first_address = min(load[3] for load in loads if load[0] == 1) & ~0xFFF
        self.symbols = next((list(self._symbols(section)) for section in self.sections if section[1] == DYNSYM), [])

    def _symbols(self, section):
        strings = self.sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, index, value, _ = struct.unpack_from("<IBBHQQ", self.bytes, at)
            end = self.bytes.index(b"\0", strings + name)
            yield self.bytes[strings + name:end].decode(), index, value, info & 15

    def exports(self):
        """Returns the names of the exported functions."""
        return [name for name, index, _, kind in self.symbols if index != UNDEFINED and name and kind in (2, 10)]

    def slots(self, name):
        """Returns the offsets from the library's start at which the addresses of an imported function are
        stored."""
        found = []
        for section in self.sections:
            if section[1] != RELA:
                continue
            for at in range(section[4], section[4] + section[5], 24):
                offset, info, addend = struct.unpack_from("<QQq", self.bytes, at)
                symbol = info >> 32
                if symbol and symbol < len(self.symbols) and self.symbols[symbol][0] == name and not addend:
                    found.append(offset - self.first_address)
        return found


def loaded(word):
    """Returns the path and the start address of the loaded library whose file name contains `word`."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            fields = line.split(None, 5)
            path = fields[5].strip() if len(fields) == 6 else ""
            if word in path.rsplit("/", 1)[-1]:
                return path, int(fields[0].split("-")[0], 16)
    raise FileNotFoundError(f"no {word} is loaded")
