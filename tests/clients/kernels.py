"""Provides the test kernel that the clients launch."""
import pathlib

PTX = (pathlib.Path(__file__).parent.parent / "load" / "kernels.ptx").read_bytes() + b"\0"
