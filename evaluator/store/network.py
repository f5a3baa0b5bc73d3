"""Whether a folder is on a network file system.

SQLite's write-ahead log needs memory that all processes share, which only the processes of one
machine do. Source: "Write-Ahead Logging", sqlite.org/wal.html.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# Source: statfs(2), and <linux/magic.h>. FUSE and 9p are not here: both are also used for folders
# of the same machine.
_NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB 2",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x20030528: "OrangeFS",
    0xAAD7AAEA: "PanFS",
}
_STATFS_BYTES = 512
"""More than `struct statfs` has on any platform."""


def network_file_system(folder: Path) -> str | None:
    """The name of the network file system that `folder` is on; None if it is local or unknown."""
    return _NETWORK.get(file_system_type(folder))


def file_system_type(folder: Path) -> int:
    """The type that statfs(2) gives; 0 where that is unknown."""
    if sys.platform != "linux":
        return 0
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(folder), buffer) != 0:
        return 0
    # The first field of the structure; a negative number is one of 32 bits.
    return ctypes.cast(buffer, ctypes.POINTER(ctypes.c_long)).contents.value & 0xFFFFFFFF
