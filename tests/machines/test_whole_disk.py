"""Disks of images, before a machine is made from them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from encamp.machines.whole_disk import disk_size
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB


def create(path: Path, *words: str) -> Path:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *words], check=True)
    return path


def test_size_of_a_disk_is_read_from_its_image(tmp_path: Path) -> None:
    path = tmp_path / "disk.qcow2"
    assert disk_size(create(path, str(path), "7M")) == 7 * MIB
    assert disk_size(create(path, str(path), "512")) == MIB


def test_image_whose_disk_names_a_file_of_the_host_is_not_booted(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(MIB))
    overlay, outside = tmp_path / "overlay.qcow2", tmp_path / "outside.qcow2"
    create(overlay, "-F", "raw", "-b", str(secret), str(overlay))
    create(outside, "-o", f"data_file={tmp_path / 'data'}", str(outside), "1M")
    for path in (overlay, outside, secret):
        with pytest.raises(EncampError) as raised:
            disk_size(path)
        assert raised.value.code is Code.CORRUPT
