"""What a recipe's kind says comes first: a whole root tree, and a kernel to boot it with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from encamp.home import Home
from encamp.images import build_debian, build_mini, build_oci, build_rootfs, oci, oci_layout, tree
from encamp.images.adding import is_current
from encamp.images.apt import Apt
from encamp.images.kernel import Kernel, get_kernel
from encamp.images.packages import Shelf
from encamp.images.portion import Portion
from encamp.images.steps import Steps, Tree, key_of
from encamp.images.waiting import locked
from encamp.model.errors import Code, EncampError
from encamp.model.image import Defaults
from encamp.model.recipe import Kind, Recipe
from encamp.progress import Silent
from encamp.workplace import Workplace

FETCHED = 0.5
"""How much of the way the list of packages and the kernel are."""


@dataclass(frozen=True)
class Site:
    """Where one build is going on."""

    home: Home
    recipe: Recipe
    work: Workplace
    steps: Steps
    shelves: dict[str, Shelf] = field(default_factory=dict)

    @contextlib.contextmanager
    def packages(self, suite: str, progress: Portion, more: tuple[str, ...] = ()) -> Iterator[Apt]:
        """The private apt of a suite, with fresh lists, for us alone."""
        waiting = "waiting: another encamp is fetching packages"
        with locked(self.home, "packages", waiting, progress) as lock:
            name = f"apt-{suite}" + (f"-{key_of('sources', *more)[:12]}" if more else "")
            apt = Apt(self.home.cache / name, suite, hold=(self.work.lock, lock), more=more)
            apt.update(progress)
            yield apt

    def shelf(self, apt: Apt) -> Shelf:
        """What an apt has now; the same for the rest of the build."""
        name = apt.directory.name
        if name not in self.shelves:
            self.shelves[name] = Shelf(apt, self.work.directory / f"shelf-{name}")
        return self.shelves[name]

    def put_back(self) -> None:
        """Keep the packages that were fetched, also by a build that failed later."""
        if self.shelves:
            with locked(self.home, "packages", "waiting", Silent()):
                for shelf in self.shelves.values():
                    shelf.put_back()


@dataclass(frozen=True)
class Foundation:
    tree: Tree
    kernel: Kernel
    defaults: Defaults


def lay(site: Site, progress: Portion) -> Foundation:
    """The foundation of a recipe that has no parent."""
    recipe = site.recipe
    with site.packages(recipe.suite, progress.part(0, FETCHED * 0.3)) as apt:
        part = progress.part(FETCHED * 0.3, FETCHED)
        kernel = get_kernel(site.home, apt, recipe.kernel, part)
        shelf = site.shelf(apt) if recipe.kind is Kind.DEBIAN else None
        if recipe.kind is Kind.MINI:
            build_mini.fetch(recipe, site.work, apt, progress.part(FETCHED, FETCHED + 0.1))
    part = progress.part(FETCHED, 1)
    if shelf is not None:
        return Foundation(debian_tree(site, shelf, part), kernel, Defaults())
    made, defaults = TREES[recipe.kind](site, part)
    return Foundation(made, kernel, defaults)


def mini_tree(site: Site, progress: Portion) -> tuple[Tree, Defaults]:
    entries = build_mini.build_root(site.work, progress)
    target = site.steps.place()
    tree.write(entries, target)
    return Tree(target, tree.tree_digest(entries)), Defaults()


def debian_tree(site: Site, shelf: Shelf, progress: Portion) -> Tree:
    recipe = site.recipe
    key = key_of("debian", recipe.suite, shelf.sources.read_text())
    found = site.steps.find(key)
    if found is not None and is_current(found, key, site.steps, shelf):
        return found
    entries = build_debian.build_bare(recipe, site.work, shelf, progress)
    return site.steps.keep(key, entries, shelf.state)


def rootfs_tree(site: Site, progress: Portion) -> tuple[Tree, Defaults]:
    source = Path(source_of(site.recipe))
    key = "" if source.is_dir() else key_of("rootfs", build_rootfs.file_digest(source))
    found = site.steps.find(key) if key else None
    if found is not None:
        return found, Defaults()
    what = f"reading {source}"
    progress.update(what)
    entries = build_rootfs.read_rootfs(source, site.work.directory)
    return kept(site, key or key_of("directory", tree.tree_digest(entries)), entries), Defaults()


def container_tree(site: Site, progress: Portion) -> tuple[Tree, Defaults]:
    source = source_of(site.recipe)
    layout_path = build_oci.local_layout(source, site.work, progress.part(0, 0.5))
    place = site.work.directory
    with oci_layout.opened(layout_path, place) as layout:
        container = oci.container(layout)
        defaults = container.configuration.defaults()
        key = key_of("oci", container.identity)
        found = site.steps.find(key)
        if found is not None:
            return found, defaults
        part = progress.part(0.5, 1)
        entries = build_oci.read_container(layout, container, source, place, part)
    return kept(site, key, entries), defaults


def source_of(recipe: Recipe) -> str:
    if not recipe.source:
        raise EncampError(
            Code.CONFIGURATION,
            f"The recipe of '{recipe.name}' does not say where its {recipe.kind.value} is.",
        )
    return recipe.source


def kept(site: Site, key: str, entries: tree.Entries) -> Tree:
    """Keep a tree of somebody else's making, once it is sure that it was read as it is."""
    made = site.steps.keep(key, entries)
    if tree.tree_digest(tree.read(made.archive)) != made.digest:
        site.steps.forget(key)
        raise tree.changed(source_of(site.recipe))
    return made


TREES: dict[Kind, Callable[[Site, Portion], tuple[Tree, Defaults]]] = {
    Kind.MINI: mini_tree,
    Kind.ROOTFS: rootfs_tree,
    Kind.OCI: container_tree,
}
