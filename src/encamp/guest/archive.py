"""Files between host and machine: `pack` writes the archive that the guest unpacks, `Unpacker`
takes apart the one that the guest packed."""

from encamp.guest.archive_pack import pack
from encamp.guest.archive_unpack import Unpacked, Unpacker

__all__ = ["Unpacked", "Unpacker", "pack"]
