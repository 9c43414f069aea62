"""Simulates the kernel driver with a table: requests succeed and are recorded, and time slices are stored."""
import ctypes
import struct

CONTROL = 0xC020462A
GET_TIMESLICE, SET_TIMESLICE = 0xA06C0104, 0xA06C0103


class Kernel:
    """Replaces ioctl in a Watch; `refuses` maps commands to the statuses that they return."""

    def __init__(self, slices=(), refuses=()):
        self.asked, self.slices, self.refuses = [], dict(slices), dict(refuses)

    def __call__(self, descriptor, request, argument):
        if request == CONTROL:
            client, handle, command, _, parameters, size, _ = struct.unpack("<4IQII", ctypes.string_at(argument, 32))
            self.asked.append((descriptor, client, handle, command, ctypes.string_at(parameters, size)))
            status = self.refuses.get(command, 0)
            if not status and command == GET_TIMESLICE:
                ctypes.memmove(parameters, struct.pack("<Q", self.slices[handle]), 8)
            elif not status and command == SET_TIMESLICE:
                self.slices[handle] = struct.unpack("<Q", ctypes.string_at(parameters, 8))[0]
            ctypes.memmove(argument + 28, struct.pack("<I", status), 4)
        return 0
