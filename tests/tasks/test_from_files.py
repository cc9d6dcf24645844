"""Classifiers as people have them: loaded by name, on the command line, and verified by ``lrpx check``."""

import json

import pytest
import tiny_heads
from tiny_classifiers import ENTITIES, SENTIMENT, classifier, tokenizer

import lrpx
from lrpx.check import check
from lrpx.cli import main as cli
from lrpx.errors import UnsupportedModelError

HEADS = {
    "sentiment": ("SequenceClassification", SENTIMENT),
    "entities": ("TokenClassification", ENTITIES),
    "answers": ("QuestionAnswering", {}),
    "choices": ("MultipleChoice", {}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("classifiers")
    for name, (head, config) in HEADS.items():
        classifier(head, **config).save_pretrained(root / name)
        tokenizer().save_pretrained(root / name)
    return root


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """Run ``lrpx explain`` in this process: exit status, what it wrote as JSON, standard error."""
    monkeypatch.chdir(folder)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["lrpx", "explain", *arguments, "--format", "json"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, json.loads(out) if out else None, err

    return run


@pytest.mark.parametrize("name", HEADS)
def test_loaded_by_its_architecture(folder, name):
    model, reader = lrpx.load(folder / name)
    assert type(model).__name__ == f"BertFor{HEADS[name][0]}"
    options = {"answers": {"question": "who ?"}, "choices": {"choices": ["runs", "sleeps"]}}.get(name, {})
    e = lrpx.Explainer(model, reader)("he lives in berlin", **options)
    assert lrpx.Explainer(str(folder / name))("he lives in berlin", **options).value == pytest.approx(e.value)


def test_an_encoder_decoder_that_classifies_tokens_is_refused_by_name():
    model = tiny_heads.build("token-classification:umt5")
    with pytest.raises(
        UnsupportedModelError, match="UMT5ForTokenClassification is an encoder-decoder model for token-"
    ):
        lrpx.explain(model, None, [11, 12, 13])


@pytest.mark.parametrize("family", ["text-classification:bert", "text-classification:llama", "token-classification:roberta",
                                    "question-answering:distilbert", "multiple-choice:electra",
                                    "text-classification:bart", "question-answering:t5"])  # fmt: skip
def test_sound_models_hold(family):
    report = check(tiny_heads.build(family))
    assert report.holds, report.lines
    assert report.value != 0


def test_a_broken_classifier_does_not_hold():
    model = tiny_heads.build("text-classification:bert")
    model.classifier.register_forward_hook(lambda _, __, y: y + y.special_i0() if hasattr(y, "special_i0") else y.i0())
    assert not check(model).holds


def test_labels_on_the_command_line(command):
    code, [e], _ = command("the film was not good", "-m", "sentiment", "--target", "POSITIVE", "--contrast-id", "0")
    assert (code, e["target"][1], e["contrast"][1], e["task"]) == (0, "POSITIVE", "NEGATIVE", "text-classification")
    code, nothing, err = command("the film", "-m", "sentiment", "--target", "GOOD")
    assert (code, nothing) == (2, None)
    assert "--target GOOD is no label. Known: NEGATIVE, POSITIVE" in " ".join(err.split())


def test_parts_on_the_command_line(command):
    _, [pair], _ = command("the film", "--text-pair", "was good", "-m", "sentiment")
    assert [name for name, *_ in pair["segments"]] == ["text", "text_pair"]
    _, [answer], _ = command("he is in paris", "--question", "who is in paris ?", "-m", "answers", "--target", "he")
    assert answer["target"][1] == "he"
    _, [choice], _ = command("a dog", "--choice", "runs", "--choice", "sleeps", "-m", "choices")
    assert {choice["target"][1], choice["contrast"][1]} == {"runs", "sleeps"}
    _, [token], _ = command("he is in paris", "--position", "4", "-m", "entities", "--target", "B-LOC")
    assert (token["position"], token["target"][1]) == (4, "B-LOC")


def test_what_is_missing_is_said_in_the_words_of_the_command_line(command):
    for name, said in (("answers", "--question"), ("choices", "--choice first --choice second")):
        code, _, err = command("a dog", "-m", name)
        assert code == 2
        assert said in " ".join(err.split())


def test_lines_with_parts_of_their_own(command, folder):
    lines = [{"text": "the film", "text_pair": "was good"}, {"text": "a dog"}]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    code, [first, second], _ = command("--file", "pairs.jsonl", "-m", "sentiment")
    assert (code, len(first["segments"]), second["segments"]) == (0, 2, [])


def test_saved_and_read_back(folder, tmp_path):
    e = lrpx.Explainer(folder / "answers")("he is in paris", question="who ?", target="in paris")
    e.save(tmp_path / "e.json")
    again = lrpx.Explanation.load(tmp_path / "e.json")
    assert again.to_dict() == e.to_dict()
    assert (again.task, again.segments, again.span) == ("question-answering", e.segments, e.span)
    older = e.to_dict()
    del older["task"], older["segments"]
    assert lrpx.Explanation.from_dict(older).task == ""
