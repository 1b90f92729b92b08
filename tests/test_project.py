"""What the project promises about its own files: links, scripts, exit codes, what is shipped."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from encamp import __version__
from encamp.model.errors import Code

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
SHELL_SCRIPTS = [*(ROOT / "tools").iterdir(), ROOT / ".ci" / "run"]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|href|srcset)=\"([^\"]+)\"")
CODE_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def headings(document: Path) -> set[str]:
    """The anchors a document offers, spelled as the usual Markdown viewers spell them."""
    text = CODE_BLOCK.sub("", document.read_text())
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        for title in re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    }


def links(document: Path) -> list[str]:
    text = CODE_BLOCK.sub("", document.read_text())
    found = [plain or attribute for plain, attribute in LINK.findall(text)]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in links(document):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), f"{document.name} links to {link}, which is not there"
        if anchor:
            assert anchor in headings(target), f"{document.name}: no heading for {link}"


def test_every_document_is_reachable_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    waiting = list(reached)
    while waiting:
        document = waiting.pop()
        for link in links(document):
            target = (document.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert set(DOCUMENTS) <= reached


def test_every_exit_code_is_documented() -> None:
    operations = (ROOT / "docs" / "operations.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", operations, re.MULTILINE)}
    assert {code.value for code in Code} <= documented


def test_no_file_names_a_package_host() -> None:
    """Where packages come from is the host's configuration, and nobody else's."""
    hosts = re.compile(rb"\b(?:deb|security|snapshot|ftp)\.debian\.org\b|\bpypi\.org\b")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert files
    mentions = [
        str(path.relative_to(ROOT))
        for path in files
        if path.is_file() and path != Path(__file__) and hosts.search(path.read_bytes())
    ]
    assert mentions == []


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_are_sound(script: Path) -> None:
    result = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs anything as other accounts")
def test_what_other_accounts_take_part_in_is_made_where_they_can_read_it(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    script = shutil.copy(ROOT / "tools" / "reachable", tmp_path / "tools")
    (tmp_path / "Makefile").write_text("where:\n\t@pwd; cat tools/reachable; exit 3\n")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([script, *words], capture_output=True, text=True, check=False)

    tmp_path.chmod(0o700)
    assert run().returncode == 1
    done = run("where")
    said, where, content = done.stdout.split("\n", 2)
    assert said.startswith(f"Other accounts cannot read {tmp_path}: 'make where' goes on in a copy")
    assert (done.returncode, content) == (2, Path(script).read_text())
    assert where in said
    assert not Path(where).exists()


def test_changelog_has_a_section_for_this_version_or_for_what_comes_next() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{__version__}]" in changelog or "## [Unreleased]" in changelog


def test_setup_has_nothing_to_do_in_this_clone() -> None:
    result = subprocess.run(
        [ROOT / "tools" / "setup", "test"], capture_output=True, text=True, timeout=300, check=False
    )
    # On a busy host it also says how long that took.
    steps = [line for line in result.stdout.splitlines() if line.startswith("[")]
    assert (result.returncode, steps) == (0, []), result.stderr


def test_setup_refuses_a_purpose_it_does_not_know() -> None:
    result = subprocess.run(
        [ROOT / "tools" / "setup", "holiday"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 64
    assert "run|slurm|gridengine|test|bench" in result.stderr


def test_make_lists_every_target() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for target in ("setup", "run", "test", "check", "bench", "docs", "clean"):
        assert re.search(rf"^  make {target} ", listed, re.MULTILINE), target


@pytest.mark.site
def test_wheel_carries_the_compiled_programs_and_is_for_this_kind_of_machine(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, tmp_path, ROOT], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"encamp-{__version__}-py3-none-linux_")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for program in (
            "encamp/guest/encamp-guest",
            "encamp/machines/encamp-launch",
            "encamp/machines/encamp-shares",
            "encamp/machines/encamp-supervisor",
            "encamp/batch/encamp-starter",
        ):
            assert program in names
            assert archive.getinfo(program).external_attr >> 16 & 0o111, f"{program}: executable"
        assert "encamp/describe/environments.yaml" in names
    assert not [name for name in names if name.endswith((".c", ".h", ".o", "Makefile"))]


def test_dependencies_are_bounded_from_below() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        requirement for extra in project["optional-dependencies"].values() for requirement in extra
    ]
    for requirement in [*project["dependencies"], *extras]:
        # An extra of our own says nothing but to take its requirements too.
        assert ">=" in requirement or requirement.startswith("encamp[")


def test_what_people_are_told_names_no_page_that_an_installation_lacks() -> None:
    """Docstrings are read beside the pages; a hint is read where there may be none."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            if isinstance(node, documented):
                said.discard(ast.get_docstring(node, clean=False))
        named = [text for text in said if isinstance(text, str) and re.search(r"docs/.*\.md", text)]
        assert named == [], path
