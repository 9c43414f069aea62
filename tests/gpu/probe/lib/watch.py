"""Records which objects of the kernel driver belong to this process, by replacing ioctl in libcuda's import
table. Only objects that this process made are ever named to the kernel driver.

The layouts are those of NVIDIA's published kernel modules (nvos.h, nv-ioctl.h, ctrla06c.h, ctrl2080fifo.h)."""
import ctypes
import struct
from ctypes import c_int, c_size_t, c_uint32, c_uint64, c_ulong, c_void_p

from answer import Skip
from .elf import Elf, loaded

MAGIC, FREE, CONTROL, ALLOC, WRAPPED = ord("F"), 0x29, 0x2A, 0x2B, 211
CHANNEL_GROUP, SUBDEVICE, GRAPHICS = 0xA06C, 0x2080, range(1, 9)
SET_TIMESLICE, GET_TIMESLICE, PREEMPT, DISABLE_CHANNELS = 0xA06C0103, 0xA06C0104, 0xA06C0105, 0x2080110B
MOST_CHANNELS = 64
PAGE, READ, WRITE = 4096, 1, 2

Ioctl = ctypes.CFUNCTYPE(c_int, c_int, c_ulong, c_void_p, use_errno=True)


class Stop(Exception):
    """The kernel driver refused a request, so no further requests are made."""

    def __init__(self, what, status):
        super().__init__(f"{what}: status {status:#x}")


def replace(word, name, function):
    """Replaces an import of a loaded library by a ctypes function. Returns the number of replaced slots."""
    path, start = loaded(word)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [c_void_p, c_size_t, c_int]
    slots = Elf(path).slots(name)
    for slot in slots:
        page = (start + slot) & ~(PAGE - 1)
        # The loader has made the page read-only; it stays writable from here on.
        if libc.mprotect(page, PAGE, READ | WRITE):
            raise Skip(f"the imports of {path} cannot be written: errno {ctypes.get_errno()}")
        c_void_p.from_address(start + slot).value = ctypes.cast(function, c_void_p).value
    return len(slots)


class Watch:
    """Records what the process allocates and frees. Must be created before cuInit, and kept until the process
    ends."""

    def __init__(self):
        self.objects = {}
        self.ioctl = ctypes.CDLL(None, use_errno=True).ioctl
        self.ioctl.argtypes = [c_int, c_ulong, c_void_p]

    def start(self, word="libcuda.so"):
        """Starts to watch a library's calls."""
        self.callback = Ioctl(self.called)
        if not replace(word, "ioctl", self.callback):
            raise Skip("libcuda calls ioctl in no way that can be watched")

    def called(self, descriptor, request, argument):
        """Replaces ioctl."""
        result = self.ioctl(descriptor, request, argument)
        if result == 0 and argument and request >> 8 & 0xFF == MAGIC:
            try:
                self.note(descriptor, request & 0xFF, request >> 16 & 0x3FFF, argument)
            except (ValueError, struct.error):
                pass
        return result

    def note(self, descriptor, number, size, argument):
        """Records a successful call."""
        if number == WRAPPED:
            number, size, argument = struct.unpack("<IIQ", ctypes.string_at(argument, 16))
        if number == ALLOC and size in (32, 48):
            self.made(descriptor, ctypes.string_at(argument, size))
        elif number == FREE and size == 16:
            root, _, old, status = struct.unpack("<4I", ctypes.string_at(argument, 16))
            if status == 0:
                self.gone(root, old)

    def made(self, descriptor, words):
        """Records the allocation of an object."""
        root, parent, new, kind, parameters = struct.unpack_from("<4IQ", words)
        (status,) = struct.unpack_from("<I", words, 28 if len(words) == 32 else 40)
        if status:
            return
        engine = None
        if kind == CHANNEL_GROUP and parameters:
            engine = struct.unpack_from("<I", ctypes.string_at(parameters, 16), 12)[0]
        self.objects[root or new, new] = {"class": kind, "parent": parent, "fd": descriptor, "engine": engine}

    def gone(self, root, old):
        """Records that an object and all objects below it were freed."""
        self.objects.pop((root, old), None)
        if root == old:
            for key in [key for key in self.objects if key[0] == root]:
                del self.objects[key]
        for key in [key for key, one in self.objects.items() if key[0] == root and one["parent"] == old]:
            self.gone(*key)

    def groups(self):
        """Returns the channel groups for kernels: client, handle, descriptor, and the handles of their
        channels."""
        return [{"client": client, "handle": handle, "fd": one["fd"], "engine": one["engine"],
                 "channels": self.channels(client, handle)}
                for (client, handle), one in self.objects.items()
                if one["class"] == CHANNEL_GROUP and one["engine"] in GRAPHICS]

    def channels(self, client, group):
        """Returns the handles of the channels in a group."""
        return [handle for (root, handle), one in self.objects.items()
                if root == client and one["parent"] == group and one["class"] & 0xFF == 0x6F]

    def subdevice(self, client):
        """Returns the client's handle of the device's subdevice."""
        found = [handle for (root, handle), one in self.objects.items()
                 if root == client and one["class"] == SUBDEVICE]
        if not found:
            raise Skip("the process has no subdevice")
        return found[0]

    def control(self, group, handle, what, command, parameters):
        """Sends a control request about an object of this process, on the descriptor with which the object
        was made."""
        call = (c_uint64 * 4)(group["client"] | handle << 32, command, ctypes.addressof(parameters),
                              ctypes.sizeof(parameters))
        request = 3 << 30 | 32 << 16 | MAGIC << 8 | CONTROL
        if self.ioctl(group["fd"], request, ctypes.addressof(call)):
            raise Stop(what, ctypes.get_errno() or 0xFFFF)
        status = call[3] >> 32
        if status:
            raise Stop(what, status)

    def timeslice(self, group):
        """Returns the group's time slice in microseconds."""
        value = (c_uint64 * 1)()
        self.control(group, group["handle"], "GET_TIMESLICE", GET_TIMESLICE, value)
        return value[0]

    def set_timeslice(self, group, usec):
        """Sets the group's time slice in microseconds."""
        self.control(group, group["handle"], "SET_TIMESLICE", SET_TIMESLICE, (c_uint64 * 1)(usec))

    def preempt(self, group):
        """Preempts the group once; waits for at most 0.1 s."""
        parameters = (c_uint32 * 2)(1 | 1 << 8, 100_000)
        self.control(group, group["handle"], "PREEMPT", PREEMPT, parameters)

    def enable(self, group, on):
        """Enables or disables the group's channels. Disabled channels run nothing until they are enabled
        again."""
        channels = group["channels"]
        if not 0 < len(channels) <= MOST_CHANNELS:
            raise Skip(f"{len(channels)} channels in the group")
        parameters = (c_uint32 * 134)(int(not on), len(channels))
        for index, channel in enumerate(channels):
            parameters[6 + index] = group["client"]
            parameters[6 + MOST_CHANNELS + index] = channel
        self.control(group, self.subdevice(group["client"]), "DISABLE_CHANNELS", DISABLE_CHANNELS, parameters)
