"""``lrpx similarity``: a sentence encoder in a folder as sentence-transformers writes it, and what comes out."""

import io
import json

import numpy as np
import pytest
import tiny_files
from transformers import BertModel

import lrpx
from lrpx.cli import main as cli

TEXTS = "the 12", "a 1 2"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in ("encoder", "bare"):
        tiny_files.save(root / name, BertModel, tiny_files.CONFIGS["bert"])
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (root / "encoder" / "modules.json").write_text(json.dumps(modules))
    (root / "encoder" / "1_Pooling").mkdir()
    (root / "encoder" / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    return root


@pytest.fixture
def similarity(models, monkeypatch, capfdbinary):
    """Run ``lrpx similarity`` in this process: exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(models)

    def run(*arguments, model="encoder"):
        monkeypatch.setattr("sys.argv", ["lrpx", "similarity", "-m", model, *arguments])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capfdbinary.readouterr()
        return end.value.code or 0, out.decode("utf-8"), err.decode("utf-8")

    return run


def test_in_the_terminal(similarity):
    code, out, err = similarity(*TEXTS)
    assert (code, err) == (0, "")
    assert out.startswith("attnlrp: cosine similarity of the two texts = ")
    assert "other:" in out
    assert "logits" not in out


def test_json_holds_what_the_library_returns(similarity, models):
    code, out, _ = similarity(*TEXTS, "--method", "lrp", "--metric", "dot", "--pairs", "--format", "json")
    assert code == 0
    [found] = map(lrpx.Explanation.from_dict, json.loads(out))
    expected = lrpx.Explainer(models / "encoder").similarity(*TEXTS, method="lrp", metric="dot", pairs=True)
    np.testing.assert_array_equal(found.relevance, expected.relevance)
    np.testing.assert_array_equal(found.pairs, expected.pairs)
    assert found.provenance["pooling"] == "cls"


def test_a_matrix_of_pairs_on_the_terminal_and_on_a_page(similarity, tmp_path):
    code, out, err = similarity(*TEXTS, "--pairs")
    assert (code, err) == (0, "")
    assert "by pairs of tokens" in out.splitlines()[0]
    assert similarity(*TEXTS, "--pairs", "-o", str(tmp_path / "pairs.html"))[0] == 0
    assert "by pairs of tokens" in (tmp_path / "pairs.html").read_text(encoding="utf-8")


def test_a_matrix_of_pairs(similarity, tmp_path):
    pytest.importorskip("matplotlib")
    assert similarity(*TEXTS, "--pairs", "-o", str(tmp_path / "pairs.png"))[0] == 0
    assert similarity(*TEXTS, "-o", str(tmp_path / "map.png"))[0] == 0
    pictures = [(tmp_path / name).read_bytes() for name in ("pairs.png", "map.png")]
    assert pictures[0] != pictures[1]
    for more in ((), ("--no-header",)):
        assert similarity(*TEXTS, "--pairs", *more, "-o", str(tmp_path / "pairs.svg"))[0] == 0
        for name in ("text", "other"):  # at the rows and at the columns
            assert f"<!-- {name} -->" in (tmp_path / "pairs.svg").read_text()
        assert ("by pairs of tokens -->" in (tmp_path / "pairs.svg").read_text()) is (not more)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("bare", (), "--pooling mean"),
        ("encoder", ("--pairs", "--format", "csv"), "Type: --output pairs.png"),
        ("encoder", ("--pooling", "man"), "--pooling man is unknown. Did you mean 'mean'?"),
        ("encoder", ("--method", "alti-logit"), "alti-logit does not explain embeddings"),
        ("encoder", ("--metric", "euclid"), "cosine"),
    ],
)
def test_what_cannot_be_asked(similarity, model, arguments, message):
    code, _, err = similarity(*TEXTS, *arguments, model=model)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
