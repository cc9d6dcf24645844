"""The page offers a method for a kind of model exactly if it can answer there."""

import app_kinds
import app_tools
import pytest

import lrpx
from lrpx.app import offered
from lrpx.app.question import question_of
from lrpx.app.wording import on_page
from lrpx.methods import METHODS


@pytest.mark.parametrize("kind", app_kinds.KINDS)
def test_a_method_is_offered_exactly_where_it_can_answer(kind):
    desk, (_, asked) = app_kinds.desk(kind), app_kinds.KINDS[kind]
    cannot = offered.methods_for(desk.explainer.model, images=bool(asked.get("images")))
    assert cannot.keys() == METHODS.keys()
    wrong = {}
    for name, why in cannot.items():
        try:
            desk.explanation(question_of({**asked, "methods": [name]}), name)
        except (lrpx.LrpxError, ImportError) as error:
            if not why:
                wrong[name] = on_page(error)
        else:
            if why:
                wrong[name] = why
    assert wrong == {}
    assert not cannot["attnlrp"]  # which is ticked at first


def test_what_is_not_installed_is_not_offered(monkeypatch):
    monkeypatch.setattr(offered, "find_spec", lambda name: None)
    cannot = offered.methods_for(app_tools.explainer().model, images=False)
    assert {name for name, why in cannot.items() if why} == {"lime", "kernel-shap"}
    assert cannot["lime"] == "needs captum: pip install captum"


def test_what_the_page_is_told():
    about = app_tools.client(app_kinds.desk("vision-language")).get("/api/about").json()
    assert "no family describes model type 'llava'" in about["cannot"]["text"]["alti"]
    assert about["cannot"]["text"]["occlusion"] == ""
    assert about["cannot"]["images"]["occlusion"] == ""
    assert about["cannot"]["images"]["leave-one-out"] == "explains texts without images"
    assert (about["by_position"], about["max_tokens"]) == (True, 100)
    image = app_tools.client(app_kinds.desk("image-classification")).get("/api/about").json()
    assert (image["by_position"], image["max_tokens"]) == (False, None)
