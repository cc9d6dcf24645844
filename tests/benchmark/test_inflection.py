"""The other number of a verb, from forms that were seen."""

import pytest

from lrpx.benchmark.inflection import Inflections


def table(*seen):
    inflections = Inflections()
    for form, tag, count in seen:
        for _ in range(count):
            inflections.see(form, tag)
    return inflections


PAIRS = [
    ("walk", "walks"),
    ("pass", "passes"),
    ("go", "goes"),
    ("carry", "carries"),
    ("play", "plays"),
    ("quiz", "quizzes"),
    ("are", "is"),
    ("have", "has"),
    ("do", "does"),
]


@pytest.mark.parametrize(("plural", "singular"), PAIRS)
def test_pairs_in_both_directions(plural, singular):
    inflections = table(*((p, "VBP", 1) for p, _ in PAIRS), *((s, "VBZ", 1) for _, s in PAIRS))
    assert inflections.other(plural, "VBP") == singular
    assert inflections.other(singular, "VBZ") == plural


def test_only_what_was_seen_with_the_right_tag():
    inflections = table(("walk", "VBP", 1), ("walks", "VBP", 3), ("sing", "VBP", 1))
    assert inflections.other("walk", "VBP") is None  # "walks" was never a VBZ
    assert inflections.other("sing", "VBP") is None
    assert inflections.other("runs", "VBZ") is None


def test_the_frequent_partner_wins():
    inflections = table(("are", "VBP", 5), ("am", "VBP", 2), ("is", "VBZ", 9))
    assert inflections.other("is", "VBZ") == "are"
    assert inflections.other("am", "VBP") == "is"
    rare = table(("do", "VBP", 1), ("dos", "VBZ", 1), ("does", "VBZ", 7))
    assert rare.other("do", "VBP") == "does"


def test_forms_seen_later_count():
    inflections = table(("walk", "VBP", 1))
    assert inflections.other("walk", "VBP") is None
    inflections.see("walks", "VBZ")
    assert inflections.other("walk", "VBP") == "walks"
