"""What is written down twice is the same in both places: versions, markers, the files around the code."""

import importlib.metadata
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import lrpx
from lrpx import errors

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="needs Python 3.11 to read TOML")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")  # beside those in docs/
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
    extras = [
        r for name, extra in EXTRAS.items() if name not in ("dev", "docs") for r in extra if not r.startswith("lrpx[")
    ]
    assert versions(lines, "==") == versions([*PROJECT["project"]["dependencies"], *extras], ">=")


def test_errors_advise_to_install_what_the_extras_list():
    """Whatever lrpx was installed from, also before it was ever released."""
    for extra, advised in errors.EXTRAS.items():
        names = [re.match(r"[\w\-\[\]]+", requirement)[0] for requirement in EXTRAS[extra]]
        assert shlex.split(advised) == names, extra
    for path in (ROOT / "src").rglob("*.py"):
        assert 'install "lrpx[' not in path.read_text(encoding="utf-8"), path


def test_pre_commit_runs_the_versions_of_the_extra_dev():
    pins = {r.name: str(r.specifier) for r in map(Requirement, EXTRAS["dev"])}
    repositories = {r["repo"]: r for r in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]}
    (ruff,) = (r for name, r in repositories.items() if name.endswith("/ruff-pre-commit"))
    assert pins["ruff"] == f"=={ruff['rev'].removeprefix('v')}"
    (mypy,) = repositories["local"]["hooks"]
    assert (mypy["entry"], mypy["language"]) == ("mypy", "system")  # the one that the extra installs
    assert pins["mypy"].startswith("==")


def bibtex(entry):
    """A BibTeX entry's fields, without the braces that keep capitals."""
    fields = re.findall(r"^  (\w+) *= \{(.+)\},?$", entry, flags=re.M)
    return {name: value.replace("{", "").replace("}", "") for name, value in fields}


def test_citation():
    """CITATION.cff and the BibTeX of docs/papers.md name the same paper and the same software."""
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["license"] == PROJECT["project"]["license"]
    paper, software = map(bibtex, re.findall(r"^```bibtex\n(.+?)^```$", read("docs/papers.md"), flags=re.M | re.S))
    preferred = citation["preferred-citation"]
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in preferred["authors"])
    assert (paper["title"], paper["author"], int(paper["year"])) == (preferred["title"], authors, preferred["year"])
    assert paper["journal"] == preferred["journal"]
    assert paper["url"] == preferred["url"] == PROJECT["project"]["urls"]["Paper"]
    assert (software["title"], software["version"]) == (citation["title"], citation["version"])
    assert (software["author"], software["license"]) == (citation["authors"][0]["name"], citation["license"])


PAPER = re.compile(r"\b([A-Z]\w+)(?: et al\.| & [A-Z]\w+),? \(?((?:19|20)\d\d)\b")


def papers(text):
    """Family name of the first author and year of every paper that a text names."""
    return set(PAPER.findall(" ".join(text.split())))


def test_every_paper_that_is_named_has_a_link():
    page = read("docs/papers.md")
    rows = re.findall(r"^\| (?P<name>[^|]+) \| [^|]+ \| (?P<paper>[^|]+) \|$", page, flags=re.M)
    linked = {
        found
        for name, paper in rows
        if re.search(r"\]\(https://(arxiv|doi)\.org/\S+\)$", paper)
        for found in papers(name)
    }
    pages = [*PAGES, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    named = {paper for path in pages for paper in papers(read(path))}
    named |= {paper for method in lrpx.METHODS.values() for paper in papers(method.source)}
    assert len(named) > 10
    assert named <= linked, f"docs/papers.md has no link to {named - linked}"


def test_links_within_the_documentation_lead_somewhere():
    for path in [*(ROOT / name for name in PAGES), *(ROOT / "docs").glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
            page = path.parent / target if target else path
            assert page.exists(), f"{path.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
                slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{path.name}: {target}#{anchor}"


def test_the_readme_links_to_every_page():
    readme = read("README.md")
    missing = [path.name for path in (ROOT / "docs").glob("*.md") if f"](docs/{path.name})" not in readme]
    assert not missing


def test_prose_ends_at_120_characters():
    """Tables, code and links may be longer."""
    for path in [*(ROOT / name for name in PAGES), *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|") and "](" not in line]
        assert not long, f"{path.name}: {long[0]}"


def test_the_readme_has_every_extra():
    listed = re.findall(
        r"^\| `([\w-]+)` \|", read("README.md").split("| extra | what for |")[1].split("##")[0], flags=re.M
    )
    assert set(listed) == set(EXTRAS) - {"test", "dev", "docs"}


def test_the_last_release_is_the_same_everywhere():
    """Of the changelog, the citation (docs/papers.md: above), and the version where there is no tag."""
    versions = re.findall(r"^## \[(.+?)\]", read("CHANGELOG.md"), flags=re.M)
    without_a_tag = PROJECT["tool"]["hatch"]["version"]["fallback-version"]
    assert versions[:2] == ["Unreleased", yaml.safe_load(read("CITATION.cff"))["version"]]
    assert without_a_tag == f"{versions[1]}+unknown"


def test_the_version_is_the_installed_one():
    assert lrpx.__version__ == importlib.metadata.version("lrpx")
    assert Version(lrpx.__version__).release > (0,)


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
    assert all((ROOT / name).exists() for name in included)  # tests/test_distribution.py builds it
