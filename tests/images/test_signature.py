"""Signatures: a host that requires them uses nothing that its keys have not signed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from encamp import programs
from encamp.images.pulling import pull
from encamp.images.pushing import push
from encamp.images.records import RECORD, SIGNATURE
from encamp.images.repository import Repository
from encamp.images.signature import Signer, sign_image, trusted_keys, verify
from encamp.images.store import ImageStore
from encamp.images.verifying import verify_image, verify_repository
from encamp.model.errors import Code, EncampError
from encamp.model.settings import Signatures
from encamp.progress import Silent
from tests.images.stock import make_image, store_in

pytestmark = pytest.mark.site


class Key:
    """A pair of keys made by minisign."""

    def __init__(self, directory: Path, name: str) -> None:
        self.secret, self.public = directory / f"{name}.key", directory / f"{name}.pub"
        programs.run(
            ["minisign", "-G", "-W", "-f", "-p", self.public, "-s", self.secret],
            purpose="making a key",
        )
        self.text = self.public.read_text().splitlines()[1]
        self.signer = Signer(self.secret)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return Key(tmp_path_factory.mktemp("keys"), "site")


@pytest.fixture(scope="module")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return Key(tmp_path_factory.mktemp("keys"), "other")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "repository"
    directory.mkdir()
    return directory


@pytest.fixture
def here(tmp_path: Path) -> ImageStore:
    return store_in(tmp_path / "here")


@pytest.fixture
def strict(tmp_path: Path, directory: Path, key: Key) -> ImageStore:
    """A host that requires signatures of the site's key."""
    return store_in(
        tmp_path / "strict",
        repositories=(str(directory),),
        signatures=Signatures(required=True, keys=(key.text,)),
    )


def untrusted(images: ImageStore, reference: str) -> str:
    """What a host that does not use an image says about it."""
    with pytest.raises(EncampError) as raised:
        images.fetch(reference)
    assert raised.value.code is Code.UNTRUSTED, raised.value
    assert images.ls() == []
    return raised.value.sentence


def test_a_signed_image_is_used(
    here: ImageStore, directory: Path, strict: ImageStore, key: Key
) -> None:
    base = make_image(here, "base")
    make_image(here, "analysis", version="1", over=base)
    push(here, Repository.open(str(directory)), "analysis", Silent(), signer=key.signer)
    found = strict.fetch("analysis")
    strict.check(found)
    assert all((part.directory / SIGNATURE).exists() for part in found.lineage)
    verify_repository(strict, Repository.open(str(directory)), found.digest, Silent())
    assert strict.fetch("analysis:1").digest == found.digest


def test_keys_may_be_given_as_files(tmp_path: Path, key: Key, other_key: Key) -> None:
    found = trusted_keys(Signatures(keys=(str(key.public), other_key.text)))
    assert sorted(found.values()) == sorted([key.text, other_key.text])
    for wrong in (str(tmp_path / "none"), "RWnothing", ""):
        with pytest.raises(EncampError) as raised:
            trusted_keys(Signatures(keys=(wrong,)))
        assert raised.value.code is Code.CONFIGURATION


def test_what_is_not_signed_is_not_used(
    here: ImageStore, directory: Path, strict: ImageStore
) -> None:
    image = make_image(here, "analysis")
    push(here, Repository.open(str(directory)), "analysis", Silent())
    assert "not signed" in untrusted(strict, "analysis")
    assert "not signed" in untrusted(strict, image.digest)


def test_a_layer_over_something_unsigned_is_not_used(
    here: ImageStore, directory: Path, strict: ImageStore, key: Key
) -> None:
    base = make_image(here, "base")
    make_image(here, "analysis", over=base)
    push(here, Repository.open(str(directory)), "analysis", Silent(), signer=key.signer)
    (directory / "images" / base.digest / SIGNATURE).unlink()
    assert base.digest[:12] in untrusted(strict, "analysis")


def test_a_signature_of_another_key_does_not_count(
    here: ImageStore, directory: Path, strict: ImageStore, other_key: Key
) -> None:
    make_image(here, "analysis")
    push(here, Repository.open(str(directory)), "analysis", Silent(), signer=other_key.signer)
    assert "does not trust" in untrusted(strict, "analysis")


def test_a_record_changed_after_it_was_signed_is_not_used(
    here: ImageStore, directory: Path, strict: ImageStore, key: Key
) -> None:
    """What the digest does not cover, such as when it was made, is covered by the signature."""
    image = make_image(here, "analysis")
    push(here, Repository.open(str(directory)), "analysis", Silent(), signer=key.signer)
    path = directory / "images" / image.digest / RECORD
    record = msgspec.json.decode(path.read_bytes())
    record["created"] += 1
    path.write_bytes(msgspec.json.encode(record))
    assert "changed after it was signed" in untrusted(strict, "analysis")


def test_a_name_moved_to_another_signed_image_is_not_followed(
    here: ImageStore, directory: Path, strict: ImageStore, key: Key
) -> None:
    make_image(here, "harmless")
    make_image(here, "analysis")
    repository = Repository.open(str(directory))
    for name in ("harmless", "analysis"):
        push(here, repository, name, Silent(), signer=key.signer)
    names = directory / "names"
    swapped = (names / "harmless.json").read_text().replace('"harmless"', '"analysis"')
    (names / "analysis.json").write_text(swapped)
    assert "changed after it was signed" in untrusted(strict, "analysis")


def test_a_name_put_back_to_an_old_image_is_not_followed(
    here: ImageStore, directory: Path, strict: ImageStore, key: Key, tmp_path: Path
) -> None:
    repository = Repository.open(str(directory))
    old = make_image(here, "analysis", seed=1)
    push(here, repository, "analysis", Silent(), signer=key.signer)
    shutil.copytree(directory / "names", tmp_path / "old-names")
    new = make_image(here, "analysis", seed=2)
    push(here, repository, "analysis", Silent(), signer=key.signer)
    assert pull(strict, repository, "analysis", Silent()).digest == new.digest
    shutil.rmtree(directory / "names")
    shutil.copytree(tmp_path / "old-names", directory / "names")
    with pytest.raises(EncampError) as raised:
        pull(strict, repository, "analysis", Silent())
    assert raised.value.code is Code.UNTRUSTED
    assert "older" in raised.value.sentence
    assert strict.get("analysis").digest == new.digest != old.digest


def test_what_was_pulled_before_signatures_were_required_is_not_used_any_more(
    here: ImageStore, directory: Path, tmp_path: Path, key: Key
) -> None:
    make_image(here, "analysis")
    repository = Repository.open(str(directory))
    push(here, repository, "analysis", Silent())
    before = store_in(tmp_path / "host", repositories=(str(directory),))
    before.check(before.fetch("analysis"))
    after = store_in(tmp_path / "host", signatures=Signatures(required=True, keys=(key.text,)))
    with pytest.raises(EncampError) as raised:
        after.check(after.get("analysis"))
    assert raised.value.code is Code.UNTRUSTED
    # Signed in the repository since, it is pulled again, and that is all it takes.
    push(here, repository, "analysis", Silent(), signer=key.signer)
    after.check(pull(after, repository, "analysis", Silent()))


def test_a_key_that_is_trusted_no_more_makes_its_images_unused(
    here: ImageStore, directory: Path, strict: ImageStore, key: Key, other_key: Key
) -> None:
    make_image(here, "analysis")
    push(here, Repository.open(str(directory)), "analysis", Silent(), signer=key.signer)
    found = strict.fetch("analysis")
    strict.check(found)
    later = ImageStore(
        strict.home,
        shared=None,
        settings=msgspec.structs.replace(
            strict.settings, signatures=Signatures(required=True, keys=(other_key.text,))
        ),
    )
    with pytest.raises(EncampError) as raised:
        later.check(found)
    assert raised.value.code is Code.UNTRUSTED


def test_a_signature_is_checked_once_and_not_for_every_machine(
    here: ImageStore,
    directory: Path,
    strict: ImageStore,
    key: Key,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_image(here, "analysis")
    push(here, Repository.open(str(directory)), "analysis", Silent(), signer=key.signer)
    found = strict.fetch("analysis")
    strict.check(found)
    monkeypatch.setattr(programs, "run", None)
    strict.check(found)


def test_what_was_built_here_needs_no_signature(strict: ImageStore) -> None:
    image = make_image(strict, "own")
    strict.check(image)


def test_an_image_signed_here_carries_its_signature_along(
    here: ImageStore, directory: Path, key: Key, tmp_path: Path, strict: ImageStore
) -> None:
    image = make_image(here, "analysis")
    sign_image(image, key.signer)
    here.check(image)
    push(here, Repository.open(str(directory)), "analysis", Silent())
    assert (directory / "images" / image.digest / SIGNATURE).exists()
    # By digest there is no name that would have to be signed too.
    strict.check(strict.fetch(image.digest))


def test_a_key_with_a_password_signs(tmp_path: Path, key: Key) -> None:
    """Each use of such a key takes seconds, which is its protection."""
    secret, public = tmp_path / "locked.key", tmp_path / "locked.pub"
    subprocess.run(
        ["minisign", "-G", "-f", "-p", public, "-s", secret],
        input=b"sesam\nsesam\n",
        check=True,
        capture_output=True,
    )
    assert Signer.needs_password(secret)
    assert not Signer.needs_password(key.secret)
    signature = Signer(secret, "sesam").sign(b"data", "a comment")
    verify("It", b"data", signature, Signatures(keys=(str(public),)), "a comment")
    with pytest.raises(EncampError) as raised:
        verify("It", b"data", signature, Signatures(keys=(str(public),)), "another comment")
    assert "for something else" in raised.value.sentence


def test_the_signature_of_an_image_is_none_of_a_name(
    here: ImageStore, directory: Path, strict: ImageStore, key: Key
) -> None:
    """An image's record has all fields that a name's has, and it is signed."""
    image = make_image(here, "analysis")
    push(here, Repository.open(str(directory)), "analysis", Silent(), signer=key.signer)
    record, signature = (
        (directory / "images" / image.digest / file).read_bytes() for file in (RECORD, SIGNATURE)
    )
    (directory / "names" / "analysis.json").write_bytes(record)
    (directory / "names" / "analysis.json.minisig").write_bytes(signature)
    with pytest.raises(EncampError) as raised:
        pull(strict, Repository.open(str(directory)), "analysis", Silent())
    assert raised.value.code is Code.CORRUPT
    assert strict.ls() == []


def test_a_signature_for_another_name_is_not_good(
    here: ImageStore, directory: Path, strict: ImageStore, key: Key
) -> None:
    make_image(here, "analysis")
    push(here, Repository.open(str(directory)), "analysis", Silent(), signer=key.signer)
    name = directory / "names" / "analysis.json"
    signed = key.signer.sign(name.read_bytes(), "encamp name other")
    name.with_name("analysis.json.minisig").write_bytes(signed)
    assert "for something else" in untrusted(strict, "analysis")


def test_what_a_machine_would_refuse_is_not_verified_as_good(
    here: ImageStore, directory: Path, tmp_path: Path, key: Key
) -> None:
    image = make_image(here, "analysis")
    push(here, Repository.open(str(directory)), "analysis", Silent())
    host = store_in(
        tmp_path / "host",
        repositories=(str(directory),),
        in_place=True,
        signatures=Signatures(required=True, keys=(key.text,)),
    )
    # Found by any beginning of its digest, although nothing of it is on the host.
    found = host.get(image.digest[:12])
    assert found.directory.is_relative_to(directory)
    with pytest.raises(EncampError) as raised:
        host.check(found)
    assert raised.value.code is Code.UNTRUSTED
    with pytest.raises(EncampError) as raised:
        verify_image(host, found, Silent())
    assert raised.value.code is Code.UNTRUSTED


def test_a_public_key_does_not_sign(key: Key) -> None:
    with pytest.raises(EncampError) as raised:
        Signer.needs_password(key.public)
    assert "the public key" in raised.value.hint
