#!/usr/bin/env python3
"""Makes an OCI image archive of programs of this machine with their libraries, without a registry.

usage: scripts/container-image.py OUT.tar NAME[,NAME...] [--entrypoint COMMAND] [--busybox] FROM:TO...

  NAME      what the image is called, such as gcgroup-kubelet-plugin:0.2.0; several names are one image
  FROM:TO   file of this machine and its path in the image; the libraries that it needs are added
  --busybox  adds busybox of this machine, with a shell

Reproducible: fixed times and owners. Load it with `ctr -n k8s.io images import OUT.tar` or `podman load`.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile

BUSYBOX = "/bin/busybox"
DIRECTORIES = {"tmp": 0o1777, "root": 0o700, "dev": 0o755, "proc": 0o755, "sys": 0o755, "run": 0o755, "bin": 0o755}


class Layer:
    """A tar archive that is filled in order, with the directories of each file."""

    def __init__(self):
        self.buffer = io.BytesIO()
        self.archive = tarfile.open(fileobj=self.buffer, mode="w", format=tarfile.USTAR_FORMAT)
        self.names = set()

    def add(self, name, mode, data=None, link=None, kind=tarfile.REGTYPE):
        name = name.lstrip("/")
        if name in self.names or not name:
            return
        if os.path.dirname(name):
            self.add(os.path.dirname(name), 0o755, kind=tarfile.DIRTYPE)
        self.names.add(name)
        entry = tarfile.TarInfo(name)
        entry.mode, entry.type, entry.linkname = mode, kind, link or ""
        entry.size = len(data or b"")
        self.archive.addfile(entry, io.BytesIO(data or b""))

    def file(self, source, name):
        with open(source, "rb") as file:
            self.add(name, 0o755, file.read())

    def bytes(self):
        self.archive.close()
        return self.buffer.getvalue()


def libraries(program):
    """Returns the paths of the libraries that a program needs; none if it is static."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    paths = []
    for line in told.stdout.splitlines():
        words = line.split()
        if "=> not found" in line:
            sys.exit(f"container-image.py: {program} needs {words[0]}, which is not found")
        paths += [word for word in words if word.startswith("/")][:1]
    return paths


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def image(arguments):
    """Returns the files of the archive, by name."""
    layer = Layer()
    for name, mode in DIRECTORIES.items():
        layer.add(name, mode, kind=tarfile.DIRTYPE)
    layer.add("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")
    layer.add("etc/group", 0o644, b"root:x:0:\n")
    pairs = [pair.split(":", 1) for pair in arguments.files]
    if arguments.busybox:
        pairs.append([BUSYBOX, "bin/busybox"])
    for source, name in pairs:
        layer.file(source, name)
        for library in libraries(source):
            layer.file(library, library)
    if arguments.busybox:
        for applet in subprocess.check_output([BUSYBOX, "--list"], text=True).split():
            layer.add("bin/" + applet, 0o777, link="busybox", kind=tarfile.SYMTYPE)
    raw = layer.bytes()
    packed = gzip.compress(raw, 6, mtime=0)
    settings = {"Env": ["PATH=/usr/bin:/bin"], "Entrypoint": arguments.entrypoint.split()}
    config = json.dumps({
        "architecture": "amd64",
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [digest(raw)]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "container-image.py"}],
    }).encode()
    manifest = json.dumps({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(config),
            "size": len(config),
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
            "digest": digest(packed),
            "size": len(packed),
        }],
    }).encode()
    names = [name if "/" in name else "docker.io/library/" + name for name in arguments.names.split(",")]
    index = json.dumps({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest(manifest),
            "size": len(manifest),
            "annotations": {"io.containerd.image.name": name},
        } for name in names],
    }).encode()
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index}
    for blob in (config, manifest, packed):
        files["blobs/sha256/" + digest(blob)[7:]] = blob
    return files


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("names")
    parser.add_argument("--entrypoint", default="/bin/sh")
    parser.add_argument("--busybox", action="store_true")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_intermixed_args()
    with tarfile.open(arguments.out, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in image(arguments).items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o644, len(data)
            archive.addfile(entry, io.BytesIO(data))


main()
