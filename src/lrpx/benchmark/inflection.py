"""The other number of a present-tense verb, looked up among the forms in the corpus.

Spelling rules propose forms (*carry* -> *carrys*, *carryes*, *carries*). A form is used only if the corpus has it with
the other tag; the most frequent one wins. So no word list is needed, and no form is invented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

# Third person singular (VBZ) of verbs that the rules below do not reach.
_IRREGULAR = {"are": "is", "have": "has", "am": "is"}


def _singulars(plural: str) -> Iterator[str]:
    """Spellings that the VBZ form of a VBP form may have."""
    if plural in _IRREGULAR:
        yield _IRREGULAR[plural]
        return
    yield plural + "s"
    yield plural + "es"
    if plural.endswith("y"):
        yield plural[:-1] + "ies"
    if plural.endswith(("s", "z")):
        yield plural + plural[-1] + "es"  # quiz, quizzes


class Inflections:
    """Pairs of verb forms, from counts of (form, tag) with the tags ``VBZ`` and ``VBP``."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()
        self._table: dict[tuple[str, str], str] | None = None

    def see(self, form: str, tag: str) -> None:
        """Count one lower-case occurrence."""
        self._seen[form, tag] += 1
        self._table = None

    def other(self, form: str, tag: str) -> str | None:
        """The form of the other number of ``form``, or ``None`` where none was seen."""
        if self._table is None:
            self._table = self._pairs()
        return self._table.get((form, tag))

    def _pairs(self) -> dict[tuple[str, str], str]:
        """(form, tag) -> the most frequent partner with the other tag; ties go to the spelling proposed first."""
        best: dict[tuple[str, str], tuple[int, str]] = {}

        def offer(key: tuple[str, str], partner: str, count: int) -> None:
            if key not in best or count > best[key][0]:
                best[key] = (count, partner)

        for plural in sorted(form for form, tag in self._seen if tag == "VBP"):
            for singular in _singulars(plural):
                if self._seen[singular, "VBZ"]:  # a Counter gives 0 for what was not seen
                    offer((plural, "VBP"), singular, self._seen[singular, "VBZ"])
                    offer((singular, "VBZ"), plural, self._seen[plural, "VBP"])
        return {key: partner for key, (_, partner) in best.items()}
