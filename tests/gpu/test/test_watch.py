"""Tests how the watch on ioctl records calls, and its requests, with a simulated kernel driver. Also tests
the replacement of an import in the installed library."""
import ctypes
import os
import struct
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../probe"))

from lib.watch import DISABLE_CHANNELS, PREEMPT, Stop, Watch, replace
from rm import Kernel

ALLOC, ALLOC_OLD, FREE = 0xC030462B, 0xC020462B, 0xC0104629
CLIENT, DEVICE, SUBDEVICE, GROUP, COPIES, CHANNEL = 0xC1D00001, 0x10, 0x11, 0x20, 0x21, 0x30


class Watching(unittest.TestCase):
    def setUp(self):
        self.kernel, self.watch, self.kept = Kernel(), Watch(), []
        self.watch.ioctl = self.kernel
        self.alloc(5, 0, 0, CLIENT, 0x41)
        self.alloc(5, CLIENT, CLIENT, DEVICE, 0x80)
        self.alloc(5, CLIENT, DEVICE, SUBDEVICE, 0x2080)
        self.alloc(7, CLIENT, DEVICE, GROUP, 0xA06C, struct.pack("<5I", 0, 0, 0, 1, 0))
        self.alloc(7, CLIENT, DEVICE, COPIES, 0xA06C, struct.pack("<5I", 0, 0, 0, 9, 0))
        self.alloc(7, CLIENT, GROUP, CHANNEL, 0xC86F, old=True)
        self.alloc(7, CLIENT, GROUP, CHANNEL + 1, 0xC86F)
        self.alloc(7, CLIENT, CHANNEL, CHANNEL + 2, 0xCBC0)

    def call(self, descriptor, request, data):
        buffer = ctypes.create_string_buffer(data, len(data))
        self.kept.append(buffer)
        return self.watch.called(descriptor, request, ctypes.addressof(buffer))

    def alloc(self, descriptor, root, parent, new, kind, parameters=b"", old=False, status=0):
        buffer = ctypes.create_string_buffer(parameters, len(parameters)) if parameters else None
        self.kept.append(buffer)
        head = struct.pack("<4IQ", root, parent, new, kind, ctypes.addressof(buffer) if buffer else 0)
        if old:
            self.call(descriptor, ALLOC_OLD, head + struct.pack("<2I", len(parameters), status))
        else:
            self.call(descriptor, ALLOC, head + struct.pack("<Q4I", 0, len(parameters), 0, status, 0))

    def free(self, handle):
        self.call(7, FREE, struct.pack("<4I", CLIENT, 0, handle, 0))

    def group(self):
        (group,) = self.watch.groups()
        return group

    def test_kernel_groups_are_recorded_with_their_channels(self):
        self.assertEqual(self.group(), {"client": CLIENT, "handle": GROUP, "fd": 7, "engine": 1,
                                        "channels": [CHANNEL, CHANNEL + 1]})

    def test_refused_and_freed_objects_are_not_recorded(self):
        self.alloc(7, CLIENT, GROUP, CHANNEL + 9, 0xC86F, status=0x1F)
        self.free(CHANNEL)
        self.assertEqual(self.group()["channels"], [CHANNEL + 1])
        self.free(DEVICE)
        self.assertEqual(self.watch.groups(), [])

    def test_freed_client_frees_all_its_objects(self):
        self.call(5, FREE, struct.pack("<4I", CLIENT, 0, CLIENT, 0))
        self.assertEqual(self.watch.objects, {})

    def test_wrapped_calls_are_recorded(self):
        inner = ctypes.create_string_buffer(
            struct.pack("<4IQQ4I", CLIENT, GROUP, 0x77, 0xC86F, 0, 0, 0, 0, 0, 0), 48)
        self.call(7, 0xC01046D3, struct.pack("<IIQ", 0x2B, 48, ctypes.addressof(inner)))
        self.assertIn(0x77, self.group()["channels"])

    def test_calls_of_other_drivers_are_ignored(self):
        before = dict(self.watch.objects)
        self.call(9, 0x2B, struct.pack("<4IQQ4I", CLIENT, GROUP, 0x78, 0xC86F, 0, 0, 0, 0, 0, 0))
        self.assertEqual(self.watch.objects, before)

    def test_time_slice_uses_the_groups_own_descriptor(self):
        self.kernel.slices[GROUP] = 2048
        self.assertEqual(self.watch.timeslice(self.group()), 2048)
        self.watch.set_timeslice(self.group(), 16384)
        self.assertEqual(self.kernel.slices[GROUP], 16384)
        self.assertEqual({entry[:3] for entry in self.kernel.asked}, {(7, CLIENT, GROUP)})

    def test_channels_are_named_by_client_and_handle(self):
        self.watch.enable(self.group(), False)
        _, client, handle, command, parameters = self.kernel.asked[-1]
        self.assertEqual((client, handle, command, len(parameters)), (CLIENT, SUBDEVICE, DISABLE_CHANNELS, 536))
        self.assertEqual(struct.unpack_from("<II", parameters), (1, 2))
        self.assertEqual(parameters[8:24], bytes(16))
        self.assertEqual(struct.unpack_from("<3I", parameters, 24), (CLIENT, CLIENT, 0))
        self.assertEqual(struct.unpack_from("<3I", parameters, 280), (CHANNEL, CHANNEL + 1, 0))
        self.watch.enable(self.group(), True)
        self.assertEqual(self.kernel.asked[-1][4][0], 0)

    def test_refusal_is_raised(self):
        self.kernel.refuses[PREEMPT] = 0x1B
        with self.assertRaisesRegex(Stop, "PREEMPT: status 0x1b"):
            self.watch.preempt(self.group())


class Imports(unittest.TestCase):
    def test_library_calls_the_replaced_import(self):
        library, seen = ctypes.CDLL("libcuda.so.1"), []
        real = ctypes.CDLL(None).getenv
        real.restype, real.argtypes = ctypes.c_void_p, [ctypes.c_char_p]

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
        def getenv(name):
            seen.append(name.decode())
            return real(name)

        self.assertGreater(replace("libcuda.so", "getenv", getenv), 0)
        self.assertEqual(library.cuInit(0), 0)
        self.assertIn("SIMGPU_DIR", seen)


if __name__ == "__main__":
    unittest.main()
