"""What is written down twice is the same in both places: versions, markers, the files around the code."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import lrpx

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="needs Python 3.11 to read TOML")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def versions(requirements, operator):
    """(Name, environment marker, version) of every requirement that has a version after ``operator``."""
    return {
        (requirement.name, str(requirement.marker), Version(bound.version))
        for requirement in map(Requirement, requirements)
        for bound in requirement.specifier
        if bound.operator == operator
    }


def test_the_lowest_versions_are_those_of_the_project():
    """The constraints with which CI runs the lowest versions."""
    lines = [line for line in read(".ci/lowest.txt").splitlines() if line and not line.startswith("#")]
    extras = [r for name, extra in EXTRAS.items() if name != "dev" for r in extra if not r.startswith("lrpx[")]
    assert versions(lines, "==") == versions([*PROJECT["project"]["dependencies"], *extras], ">=")


def test_pre_commit_runs_the_versions_of_the_extra_dev():
    pins = {r.name: str(r.specifier) for r in map(Requirement, EXTRAS["dev"])}
    repositories = {r["repo"]: r for r in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]}
    (ruff,) = (r for name, r in repositories.items() if name.endswith("/ruff-pre-commit"))
    assert pins["ruff"] == f"=={ruff['rev'].removeprefix('v')}"
    (mypy,) = repositories["local"]["hooks"]
    assert (mypy["entry"], mypy["language"]) == ("mypy", "system")  # the one that the extra installs
    assert pins["mypy"].startswith("==")


def test_citation():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == lrpx.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["preferred-citation"]["title"] in " ".join(read("README.md").split())


def test_the_changelog_has_this_version_and_what_comes_next():
    versions = re.findall(r"^## \[(.+?)\]", read("CHANGELOG.md"), flags=re.M)
    assert versions[:2] == ["Unreleased", lrpx.__version__]


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*_*.yml")), ids=lambda p: p.stem)
def test_issue_forms(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    ids = [part["id"] for part in form["body"]]
    assert len(set(ids)) == len(ids)
    required = [part["id"] for part in form["body"] if part.get("validations", {}).get("required")]
    assert set(required) >= ({"check", "versions"} if path.stem == "bug_report" else {"use_cases"})


def test_contributors_read_about_every_marker():
    markers = {line.split(":")[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    assert markers == set(re.findall(r"^\| `(\w+)` \| \w", read("CONTRIBUTING.md").split("| marker |")[1], flags=re.M))


def test_everything_a_release_needs_is_in_the_source_archive():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"src", "tests", "docs"} <= set(included)
    assert all((ROOT / name).exists() for name in included)
