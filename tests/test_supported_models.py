"""``docs/supported_models.md`` says what the sweeps say."""

import pytest
import supported_models
import transformers


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
