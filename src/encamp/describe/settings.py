"""The settings of a site and of its user, read from their files.

A user's settings add to the site's and may be stricter; they cannot take back what a site requires.
"""

from __future__ import annotations

import os
import time

from encamp.describe import compiled, places
from encamp.home import default_home
from encamp.model.errors import Code, EncampError
from encamp.model.settings import Settings, Signatures
from encamp.model.size import parse_bytes

KEPT = "environments"
"""Shares a directory of the cache with what was read from descriptions."""

LIMIT = "ENCAMP_IMAGE_LIMIT"
"""A variable for one command; like a user's file, it cannot allow more than the site does."""


class SettingsError(EncampError):
    """A mistake in the settings. Whatever is asked for here fails over it until it is mended; what
    is asked for is not to blame."""


def load_settings() -> Settings:
    """What is set for the caller. Without any file, nothing is read and all is as shipped."""
    found = places.look(places.settings_places())
    settings = _read(found) if any(entry.status or entry.refused for entry in found) else Settings()
    chosen = os.environ.get(LIMIT)
    if chosen:
        limit = _smaller(settings.image_limit, parse_bytes(chosen, LIMIT))
        settings = _changed(settings, image_limit=limit)
    return settings


def _read(found: list[places.Found]) -> Settings:
    directory = default_home().cache / KEPT
    mark = compiled.stamp(Settings, [entry.stamp for entry in found])
    settings = compiled.fetch(directory, places.SETTINGS.encode(), mark, Settings)
    if settings is None:
        now = time.time_ns()
        settings = _load(found)
        if not places.just_changed(found, now):
            mark = compiled.stamp(Settings, [entry.stamp for entry in found])
            compiled.keep(directory, places.SETTINGS.encode(), mark, settings)
    return settings


def _load(found: list[places.Found]) -> Settings:
    from encamp.describe.setting_files import read_settings

    files = places.read(found)
    for entry in found:
        # What a site requires cannot be left out because its file is unreadable.
        if entry.refused:
            raise SettingsError(
                Code.CONFIGURATION, entry.refused, "Settings decide what is trusted here."
            )
    settings = Settings()
    try:
        for read in read_settings(files):
            settings = combined(settings, read)
    except EncampError as error:
        raise SettingsError(error.code, error.sentence, error.hint, detail=error.detail) from error
    return settings


def combined(site: Settings, user: Settings) -> Settings:
    """A site's settings with a user's added to them."""
    required = site.signatures.required
    keys = site.signatures.keys if required else (*site.signatures.keys, *user.signatures.keys)
    return _changed(
        site,
        repositories=tuple(dict.fromkeys((*site.repositories, *user.repositories))),
        redirects=tuple(dict.fromkeys((*site.redirects, *user.redirects))),
        image_limit=_smaller(site.image_limit, user.image_limit),
        template_limit=_smaller(site.template_limit, user.template_limit),
        signatures=Signatures(required=required or user.signatures.required, keys=keys),
        in_place=site.in_place or user.in_place,
        volume_group=user.volume_group or site.volume_group,
        thin_pool=user.thin_pool or site.thin_pool,
        bridge=user.bridge or site.bridge,
    )


def _changed(settings: Settings, **changes: object) -> Settings:
    import msgspec

    return msgspec.structs.replace(settings, **changes)


def _smaller(one: int | None, other: int | None) -> int | None:
    given = [limit for limit in (one, other) if limit is not None]
    return min(given, default=None)
