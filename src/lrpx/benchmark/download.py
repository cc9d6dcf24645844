"""A source as a checked local file: a path, or a URL whose content has the expected checksum.

A checksum comes from the caller (``...#sha256=<64 hex digits>``) or from the table of published files below, which
``fetch`` gets by name. A URL without either is refused. The error shows the checksum of the downloaded content, so that
the user can decide to trust it.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError, nearest
from ..files import atomic_write, sha256, update_digest

_TIMEOUT = 60  # seconds without a byte


class Published(NamedTuple):
    """A file that its authors published."""

    name: str  # for ``fetch``
    title: str
    url: str
    paper: str
    license: str


_GOLDBERG = "https://raw.githubusercontent.com/yoavg/bert-syntax/master/"
_BLIMP = "https://raw.githubusercontent.com/alexwarstadt/blimp/master/data/"
_BLIMP_PAPER = "Warstadt et al. (2020), BLiMP: The Benchmark of Linguistic Minimal Pairs for English"

# Keyed by git's own checksum of the content (SHA-1 of "blob <size>\0<content>"), which the repositories publish.
PUBLISHED = {
    "3678296e1bbb95a6e4f83e7518b9021601086ea8": Published(
        "lgd",
        "lgd_dataset.tsv",
        _GOLDBERG + "lgd_dataset.tsv",
        "Goldberg (2019), Assessing BERT's Syntactic Abilities; data of Linzen, Dupoux and Goldberg (2016)",
        "MIT, according to Arras et al. (2025)",
    ),
    **{
        blob: Published(name, f"BLiMP {name}", f"{_BLIMP}{name}.jsonl", _BLIMP_PAPER, "CC BY 4.0")
        for blob, name in {
            "846083500c7e341c24c1f7411aa624de85f148bb": "regular_plural_subject_verb_agreement_1",
            "a0a39113346823981537f4bbdd4635c87eaed1e5": "regular_plural_subject_verb_agreement_2",
            "99a06c91da16d40695e3cfadeef69609b8e6e992": "irregular_plural_subject_verb_agreement_1",
            "1065055efd751d24dd998cb2c271870f0bace652": "irregular_plural_subject_verb_agreement_2",
            "d454cd7d6b293866b427b6759b88fbb8b9c646bf": "distractor_agreement_relational_noun",
            "ebc95e27000b7febd42c85151de1cb4a3aa33054": "distractor_agreement_relative_clause",
            "0371d50db2793a9c8e8c595b03bde41f5005a931": "determiner_noun_agreement_1",
            "daaee047ecdea0461f61a8c03613c6359b15ba21": "determiner_noun_agreement_2",
            "e22a3bae2e76d1cea652749885d3c70833dc89d0": "determiner_noun_agreement_irregular_1",
            "82a76cb1f6227c747bf70e37b8552c78de48908c": "determiner_noun_agreement_irregular_2",
            "d88783ab29047e41857b6a0c01c84bcfb3a06c80": "determiner_noun_agreement_with_adjective_1",
            "c4a4bc8855f504a09a4540190c3d2257392782f4": "determiner_noun_agreement_with_adj_2",
            "127e2b39eca536856a836eb7f3964273196b8ba3": "determiner_noun_agreement_with_adj_irregular_1",
            "1512082143089483185a59a9f8a86c339ff923ba": "determiner_noun_agreement_with_adj_irregular_2",
            "60f2e3ae7e31db6cc39bbeaa2d617b053294a54e": "anaphor_number_agreement",
            "c0bcabdf757ee96f2b16642525899a09e341a352": "anaphor_gender_agreement",
        }.items()
    },
}


def published(path: Path) -> Published | None:
    """What ``path`` is, if its content is one of the published files."""
    header = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    return PUBLISHED.get(update_digest(header, path))


def fetch(name: str, folder: str | Path = ".") -> Path:
    """Download a published file by name into a folder, and verify it. One that is there already is not fetched again.

    Args:
        name: ``"lgd"`` (Goldberg's ``lgd_dataset.tsv``, the paper's source), the name of a BLiMP paradigm, or ``"blimp"``:
            all of BLiMP's agreement paradigms.
        folder: Where it goes, under the name that its authors gave it. For ``"blimp"`` it is made if it is not there.

    Returns:
        The path of the file; for ``"blimp"`` the folder.

    Raises:
        InputError: An unknown name, no such folder, another file of that name in it, a failed download, or a content that is
            not what was published.
        LrpxError: The file could not be written.
    """
    known = {file.name: (blob, file) for blob, file in PUBLISHED.items()}
    if name == "blimp":
        Path(folder).mkdir(parents=True, exist_ok=True)
        for file in PUBLISHED.values():
            if file.paper == _BLIMP_PAPER:
                fetch(file.name, folder)
        return Path(folder)
    if name not in known:
        raise InputError(f"no published file is called {name!r}. {nearest(name, [*known, 'blimp'])}")
    blob, file = known[name]
    path = Path(folder) / file.url.rsplit("/", 1)[-1]
    if not path.parent.is_dir():
        raise InputError(f"{folder} is no folder. Make it first: mkdir -p {folder}")
    if path.exists():
        if published(path) != file:
            raise InputError(
                f"{path} is there and is not {file.title} as published. Move it, or choose another folder."
            )
        return path
    with atomic_write(path) as temporary:
        temporary.write_bytes(_download(file.url))
        if published(temporary) != file:
            raise InputError(
                f"what is at {file.url} is not {file.title} as published: git calls that file {blob}. Nothing was kept."
            )
    return path


def local_file(source: str, folder: Path) -> Path:
    """The file ``source`` names, fetched into ``folder`` if it is a URL, its checksum verified.

    Args:
        source: A path or an http(s) URL, with ``#sha256=...`` appended if the content is to be checked.
        folder: Where a download goes; a verified file that is already there is not fetched again.

    Raises:
        InputError: There is no such file, the download fails, or the content is not the one that was meant.
    """
    source, expected = _split_checksum(source)
    if not re.match(r"https?://", source):
        path = Path(source).expanduser()
        if not path.is_file():
            raise InputError(
                f"{source} is {'a folder' if path.is_dir() else 'not there'}: give a file or an http(s) URL."
            )
        if expected is not None and sha256(path) != expected:
            raise InputError(f"{source} has sha256 {sha256(path)}, expected {expected}: it is another file.")
        return path
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(source).path)).name or "source"
    path = folder / name
    if not (path.is_file() and (sha256(path) == expected or published(path))):
        with atomic_write(path) as temporary:
            temporary.write_bytes(_download(source))
            _verify(source, temporary, expected)
    return path


def _split_checksum(source: str) -> tuple[str, str | None]:
    """``source`` without ``#sha256=...``, and the checksum."""
    source, mark, digest = source.partition("#sha256=")
    if mark and not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise InputError(f"#sha256={digest} is not a SHA-256: it has 64 hexadecimal digits.")
    return source, digest.lower() if mark else None


def _download(url: str) -> bytes:
    """The complete content of ``url``."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:  # http(s) only, see local_file
            return bytes(response.read())
    except http.client.IncompleteRead as error:
        arrived = len(error.partial)
        raise _unreachable(url, f"{arrived} of {arrived + (error.expected or 0)} bytes arrived") from error
    except (http.client.HTTPException, OSError) as error:
        raise _unreachable(url, error) from error


def _unreachable(url: str, reason: object) -> InputError:
    return InputError(f"could not download {url}: {reason}. Download it yourself and give the path of the file.")


def _verify(url: str, path: Path, expected: str | None) -> None:
    actual = sha256(path)
    if expected is None and published(path) is None:
        raise InputError(
            f"{url} is not a file lrpx knows, and no checksum was given. What is there has sha256 {actual}; if that is what "
            f"you want, give {url}#sha256={actual}"
        )
    if expected is not None and actual != expected:
        raise InputError(f"{url} has sha256 {actual}, expected {expected}: it is not the file that was meant.")
