"""``docs/supported_models.md`` says what the sweeps say."""

import auto_classes
import pytest
import supported_models
import transformers
from packaging.version import Version


def test_the_page_is_up_to_date():
    page = supported_models.PAGE.read_text(encoding="utf-8")
    version = ".".join(transformers.__version__.split(".")[:2])
    if f"of transformers {version} " not in page:
        pytest.skip(f"the page is of another version of transformers than {transformers.__version__}")
    assert page == supported_models.page(), "write it anew: python tests/helpers/supported_models.py"


def test_no_model_type_is_both():
    for sweep in supported_models.sweeps():
        assert len(sweep.explained) > 5
        assert sweep.explained.isdisjoint(sweep.refused)
        assert (supported_models.HERE.parents[1] / sweep.test).exists()


def test_every_table_of_transformers_is_swept_or_outside_for_a_reason():
    known = auto_classes.tables()
    new = known.keys() - auto_classes.SWEPT.keys() - auto_classes.OUTSIDE.keys()
    assert not new, "say in tests/helpers/auto_classes.py what is explained of these, or why nothing is"
    assert known.keys() > auto_classes.SWEPT.keys()
    assert not auto_classes.SWEPT.keys() & auto_classes.OUTSIDE.keys()


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.17"), reason="of older versions more is left out")
@pytest.mark.parametrize("table", auto_classes.SWEPT)
def test_every_model_type_of_a_swept_table_was_looked_at(table):
    [sweep] = [each for each in supported_models.sweeps() if each.column == auto_classes.SWEPT[table]]
    left = auto_classes.left_out(table)
    types = auto_classes.tables()[table].keys()
    assert types <= sweep.explained | sweep.refused.keys() | left.keys(), "add them to the sweep, or say why not"
    assert left.keys().isdisjoint(sweep.explained)
    assert len(types) > 5


def test_models_of_more_than_text_are_in_another_table_too():
    tables = auto_classes.tables()
    if "MULTIMODAL_LM" not in tables:
        pytest.skip("this transformers has no such table")
    elsewhere = set().union(*(tables[table] for table in auto_classes.SWEPT))
    assert tables["MULTIMODAL_LM"].keys() - elsewhere <= {*auto_classes.OTHERWISE_SKIPPED["MULTIMODAL_LM"]}


def test_the_readme_counts_as_the_page_does():
    """Causal and masked models of a type count by themselves; three encoder-decoder models are explained as such."""
    sweeps = [sweep for sweep in supported_models.sweeps() if sweep.column in ("next token", "masked token")]
    explained = sum(len(sweep.explained) for sweep in sweeps)
    refused = ["explained as such" in why for sweep in sweeps for why in sweep.refused.values()]
    known = frozenset().union(*supported_models.alti_columns().values())
    readme = " ".join((supported_models.HERE.parents[1] / "README.md").read_text(encoding="utf-8").split())
    version = ".".join(transformers.__version__.split(".")[:2])
    assert f"[knows {len(known)} model types](docs/add_a_family.md)" in readme
    if f"in transformers {version}," not in readme:
        pytest.skip(f"the README is about another version of transformers than {transformers.__version__}")
    count = explained + len(refused)
    assert f"Of the {count} causal and masked models in transformers {version}, {explained} are" in readme
    assert refused.count(True) == 3
    assert "Three, the masked ones of BART, mBART and MVP, are" in readme
    assert f"The other {refused.count(False)} are refused" in readme
