"""Where a machine keeps what it writes."""

from __future__ import annotations

import enum


class Storage(enum.Enum):
    """The kinds there are. The machine's size is enforced in every case."""

    AUTO = "auto"
    """In memory without a disk size; with one, whatever the host does best."""
    RAM = "ram"
    SPARSE = "sparse"
    """A file with holes."""
    QCOW2 = "qcow2"
    """An overlay over what the template wrote."""
    REFLINK = "reflink"
    """A copy that shares its blocks, where the file system can (XFS, btrfs)."""
    LVM = "lvm"
    """A thin volume of the site's volume group."""
