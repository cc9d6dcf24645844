"""The page of results: its figures against the records, every section, and the page in the repository."""

import re
from pathlib import Path

import numpy as np
import pytest
from evaluation_tools import made_up

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx.errors import InputError
from lrpx.evaluation.condensed import find_condensed
from lrpx.evaluation.metrics import bootstrap
from lrpx.evaluation.packing import pack
from lrpx.evaluation.records import METRICS
from lrpx.report.results_cells import table_of
from lrpx.report.results_page import _processor, results_page, write_results

ROOT = Path(__file__).resolve().parents[2]
GATED = ["lrp", "lrp-uniform-gate", "attnlrp", "alti-logit", "gradient-l1", "gradient-l2", "gradient-x-input", "random"]
BERT = {"name": "bert", "weights": "99", "layers": 2}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Records of two models, one of them at three places."""
    folder = tmp_path_factory.mktemp("stored")
    runs = {
        "gated/input": (GATED, {}),
        "gated/embedding": (["lrp", "attnlrp"], {"options": {"at": "embedding"}}),
        "gated/block": (["lrp", "attnlrp"], {"options": {"at": "model.layers.6"}, "samples": 20}),
        "bert/input": (["lrp", "attnlrp"], {"model": BERT, "benchmark": {"input": "masked"}, "samples": 20}),
    }
    for name, (methods, options) in runs.items():
        run = made_up(folder / "runs" / name, methods, **options)
        pack(run, folder / "stored" / name)
    return folder / "stored"


@pytest.fixture(scope="module")
def page(stored):
    return results_page([stored])


def tables(text):
    """The tables of a part of the page, each as rows of cells."""
    found = re.findall(r"(?:^\|.*\n?)+", text, flags=re.M)
    return [[row.strip("|").split("|") for row in table.splitlines() if "---" not in row] for table in found]


def section(page, title):
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def test_sections(page):
    assert re.findall(r"^#+ (.*)$", page, flags=re.M) == [
        "Results",
        "What the figures are from",
        "bert",
        "made-up",
        "Per number of attractors",
        "By layer",
        "The gap between LRP and AttnLRP on gated models",
        "Which findings of the paper hold",
    ]


def test_what_the_figures_are_from(page):
    (rows,) = tables(section(page, "What the figures are from"))
    cells = [[cell.strip() for cell in row] for row in rows[1:]]
    assert [row[:2] for row in cells] == [["bert", "masked"], ["made-up", "causal, with gated MLPs"]]
    assert all(row[3:9] == ["float32", "cpu", "2.13.0", "5.24.0", "0.1.0", "source.tsv"] for row in cells)


def test_scores_are_means_with_their_intervals(page, stored):
    (rows,) = tables(section(page, "made-up"))
    records = made_up(stored.parent / "again", GATED).table().to_pylist()
    scores = {}
    for record in sorted(records, key=lambda record: record["sample_id"]):
        if record["correct"]:
            for metric in METRICS:
                scores.setdefault(record["method"], {}).setdefault(metric, []).append(record[metric])
    order = sorted(scores, key=lambda name: -np.mean(scores[name]["mrr"]))
    assert len(rows) == 1 + len(order)
    for name, row in zip(order, rows[1:], strict=True):
        for metric, cell in zip(METRICS, row[2:6], strict=True):
            mean, low, high = bootstrap(scores[name][metric])
            shown = [float(number) for number in cell.strip(" *").split(" ± ")]
            assert shown == pytest.approx([mean, (high - low) / 2], abs=0.00061)
    best = [max(np.mean(scores[name][m]) for name in order) for m in METRICS]
    for column, high in enumerate(best):
        marked = {order[n] for n, row in enumerate(rows[1:]) if "**" in row[2 + column]}
        assert marked == {
            name for name in order if np.mean(scores[name][METRICS[column]]) == pytest.approx(high, abs=1e-5)
        }


def test_per_number_of_attractors(page):
    told = section(page, "Per number of attractors")
    assert re.findall(r"^\*\*(.*)\*\*$", told, flags=re.M) == ["bert", "made-up"]
    head, *rows = tables(told)[1]
    assert [cell.strip() for cell in head] == ["method", "1", "2", "3", "4 or more", "from fewest to most"]
    for row in rows:
        first, last = (float(row[n].split("±")[0]) for n in (1, 4))
        assert float(row[5]) == pytest.approx(last - first, abs=0.0011)


def test_by_layer(page):
    told = section(page, "By layer")
    (rows,) = tables(told)
    assert "**made-up**, " in told
    assert [row[0].strip() for row in rows] == ["method", "LRP", "AttnLRP"]
    assert [cell.strip() for cell in rows[0][1:]] == ["embedding", "input", "block 7"]
    assert len({row[2] for row in rows[1:]}) == 2


def test_the_gap(page):
    told = section(page, "The gap between LRP and AttnLRP on gated models")
    gap, spread = tables(told)
    assert [row[0].strip() for row in gap[1:]] == ["PG2", "MRR", "RMA"]
    for row in gap[1:]:
        lrp, uniform, attnlrp = (float(cell) for cell in row[1:4])
        assert float(row[4].split("±")[0]) == pytest.approx(uniform - lrp, abs=0.0011)
        assert float(row[5].split("±")[0]) == pytest.approx(attnlrp - uniform, abs=0.0011)
    assert len(spread) == 6
    known = gap[2][6].strip() != "–"  # of random models, rounding decides whether the gap may be 0
    assert bool(re.search(r"the rule for gates makes -?\d+% of the gap of -?\d\.\d{3} in\s+MRR", told)) == known


def test_findings(page):
    told = section(page, "Which findings of the paper hold")
    (rows,) = tables(told)
    verdicts = [row[2].strip(" *") for row in rows[1:]]
    assert set(verdicts) <= {"holds", "open", "does not hold"}
    for row, verdict in zip(rows[1:], verdicts, strict=True):
        mean, half = (float(number) for number in row[3].split(":")[1].split("±"))
        assert {"holds": mean > half, "open": abs(mean) < half + 0.1, "does not hold": mean < 0}[verdict]
    counts = re.search(r"Of (\d+) checks (\d+) hold, (\d+) are open,\s+and (\d+) do not hold", told)
    expected = [len(verdicts), *(verdicts.count(name) for name in ("holds", "open", "does not hold"))]
    assert [int(n) for n in counts.groups()] == expected
    assert "Not checked, for want of such a model or method: On GPT-2" in " ".join(told.split())


def test_findings_that_want_a_method_say_which(tmp_path):
    methods = [name for name in GATED if name not in ("lrp-uniform-gate", "random")]
    told = section(
        results_page([pack(made_up(tmp_path / "run", methods), tmp_path / "packed").path]),
        "Which findings of the paper hold",
    )
    assert "made-up: findings about Llama-like models and about GPT-2 are not checked" in " ".join(told.split())
    assert "Evaluate lrp-uniform-gate too" in " ".join(told.split())
    (rows,) = tables(told)
    (chance,) = [row for row in rows if "worse than chance" in row[0]]
    assert chance[2].strip(" *") == "does not hold" or chance[3].strip() == "not evaluated: Random"


def test_records_without_the_input_make_no_page(stored, tmp_path):
    with pytest.raises(InputError, match="no records with relevance at the input"):
        results_page([stored / "gated" / "embedding"])
    with pytest.raises(InputError, match=r"^output='"):
        write_results([stored], tmp_path)
    with pytest.raises(InputError, match=r"page\.html': the page is Markdown\. Give a name that ends in .md"):
        write_results([stored / "bert"], tmp_path / "page.html")
    write_results([stored / "bert"], tmp_path / "page.md")
    alone = (tmp_path / "page.md").read_text()
    assert alone.startswith("# Results")
    assert "evaluate.md)" not in alone
    assert "on the models whose records were given?" in " ".join(alone.split())
    (tmp_path / "evaluate.md").write_text("")
    write_results([stored / "bert"], tmp_path / "page.md")
    assert "[evaluate.md](evaluate.md)" in (tmp_path / "page.md").read_text()


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="the stored records are not part of this archive")
def test_the_page_in_the_repository_is_made_from_the_stored_records():
    """Figures may differ in the last printed digit between versions of numpy."""
    made, there = results_page([ROOT / "results"]), (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    number = re.compile(r"\d+\.\d+|\.\d+|\d+(?=%)")
    assert number.sub("#", made) == number.sub("#", there)
    for a, b in zip(number.findall(made), number.findall(there), strict=True):
        assert float(a) == pytest.approx(float(b), abs=1.01 if "." not in a else 0.0011)
    assert len(find_condensed([ROOT / "results"])) > 10


def test_records_without_a_correct_prediction(tmp_path):
    run = made_up(tmp_path / "run", ["lrp"], samples=5, change=lambda record: record._replace(correct=False))
    with pytest.raises(InputError, match="no scores: only those of correctly predicted samples count"):
        results_page([pack(run, tmp_path / "packed").path])


def test_few_samples_have_neither_interval_nor_best_nor_verdict(tmp_path):
    run = made_up(tmp_path / "run", GATED, samples=5, change=lambda record: record._replace(correct=True))
    page = results_page([pack(run, tmp_path / "packed").path])
    assert "±" not in "".join(page.split("## What the figures are from")[1])
    assert "nan" not in page
    (rows,) = tables(section(page, "made-up"))
    assert not any("**" in cell for row in rows for cell in row)
    (verdicts,) = tables(section(page, "Which findings of the paper hold"))
    assert {row[2].strip(" *") for row in verdicts[1:]} == {"open"}


@pytest.mark.parametrize(("truth", "name"), [("the value in the needle", "needle value"), ("the needle", "needle")])
def test_records_of_another_task_are_spoken_of_as_what_they_are(tmp_path, truth, name):
    hay = {"task": "haystack", "ground_truth": truth, "source": "haystack of 3 sentences"}
    run = made_up(tmp_path / "run", GATED, benchmark=hay)
    page = results_page([pack(run, tmp_path / "packed").path])
    told = " ".join(page.split())
    assert f"How well do the methods find the {name}, on" in told
    assert "Attractors are values of the other needles." in told
    assert f"| top: {name} |" in told
    assert "| sentences | ground truth |" in told
    assert "subject" not in told
    assert "Which findings of the paper hold" not in told  # which are about subject-verb agreement


def test_one_number_of_attractors_makes_no_table_per_number(tmp_path):
    run = made_up(tmp_path / "run", ["lrp"], change=lambda record: record._replace(attractors=1))
    assert "Per number of attractors" not in results_page([pack(run, tmp_path / "packed").path])


def test_a_module_inside_a_block_is_not_called_by_the_block(tmp_path):
    for n, at in enumerate(("input", "model.layers.6", "model.layers.6.mlp")):
        pack(made_up(tmp_path / f"run{n}", ["lrp"], samples=5, options={"at": at}), tmp_path / "packed" / str(n))
    assert "| method | input | block 7 | model.layers.6.mlp |" in results_page([tmp_path / "packed"])


def test_a_processor_is_said_to_be_one():
    assert [_processor(card) for card in ("x86_64", "arm64", "NVIDIA H200")] == [
        "CPU (x86_64)",
        "CPU (arm64)",
        "NVIDIA H200",
    ]


def test_texts_are_aligned_to_the_left_and_numbers_to_the_right():
    head = ["method", "samples", "MRR", "p", "share", "torch", "not told apart from"]
    rows = [
        ["LRP", "3,394", "**0.770 ± 0.011**", "< .001", "3 of 4 (75.0%)", "2.11.0", "Gradient, L1"],
        ["Random", "953", "-0.006 ± 0.022", "", "1 of 4 (25.0%)", "2.11.0", ""],
    ]
    line = table_of([head, *rows]).split("\n")[1]
    assert line == "| --- | ---: | ---: | ---: | ---: | --- | --- |"
