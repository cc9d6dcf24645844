"""Condensed records, brought together by model and place."""

import numpy as np
import pytest
from evaluation_tools import made_up

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx.errors import InputError
from lrpx.evaluation.condensed import find_condensed
from lrpx.evaluation.packing import pack
from lrpx.evaluation.records import METRICS
from lrpx.report.measured import common, difference, measured, metrics

LRPS = ["lrp", "lrp-uniform-gate", "attnlrp"]


def packed(folder, methods, **changes):
    return pack(made_up(folder / "run", methods, **changes), folder / "packed")


def test_runs_of_one_model_come_together(tmp_path):
    """By methods and places, over the correctly predicted samples."""
    packed(tmp_path / "a", ["lrp", "attnlrp"])
    packed(tmp_path / "b", ["alti"])
    packed(tmp_path / "c", ["lrp"], options={"at": "embedding"})
    packed(tmp_path / "d", ["lrp"], model={"name": "another", "weights": "99"})
    found = measured(find_condensed([tmp_path / name / "packed" for name in "abcd"]))
    assert [(m.label, {at: list(methods) for at, methods in m.places.items()}) for m in found] == [
        ("made-up", {"input": ["lrp", "attnlrp", "alti"], "embedding": ["lrp"]}),
        ("another", {"input": ["lrp"]}),
    ]
    one = found[0]
    records = made_up(tmp_path / "again", ["lrp"]).table().to_pylist()
    right = sorted(r["sample_id"] for r in records if r["correct"])
    assert (one.predicted, one.correct) == (30, len(right))
    assert one.methods["lrp"]["sample_id"].tolist() == right
    by_id = {r["sample_id"]: r for r in records}
    assert one.attractors == {i: r["attractors"] for i, r in by_id.items()}
    two = one.subset(one.methods["lrp"], 2)
    assert two["sample_id"].tolist() == [i for i in right if by_id[i]["attractors"] == 2]
    more = one.subset(one.methods["lrp"], 3, or_more=True)
    assert more["mrr"] == pytest.approx([by_id[i]["mrr"] for i in right if by_id[i]["attractors"] >= 3])


def test_models_of_one_name_are_told_apart(tmp_path):
    packed(tmp_path / "a", ["lrp"])
    packed(tmp_path / "b", ["lrp"], model={"dtype": "float64"})
    packed(tmp_path / "c", ["lrp"], options={"rules": "gamma=0.25"})
    found = measured(find_condensed([tmp_path / name / "packed" for name in "abc"]))
    assert [m.label for m in found] == [
        "made-up (float32, 00)",
        "made-up (float64, 00)",
        "made-up (float32, gamma=0.25, 00)",
    ]


def test_the_same_method_twice_is_refused(tmp_path):
    for name in "ab":
        packed(tmp_path / name, ["lrp"])
    with pytest.raises(InputError, match="both have lrp of made-up at input"):
        measured(find_condensed([tmp_path / "a" / "packed", tmp_path / "b" / "packed"]))


def test_samples_of_another_benchmark_are_refused(tmp_path):
    packed(tmp_path / "a", ["lrp"])
    packed(tmp_path / "b", ["alti"], change=lambda record: record._replace(token_ids=[7] * len(record.token_ids)))
    with pytest.raises(InputError, match=r"sample \d+ is not that of .*: the benchmarks differ"):
        measured(find_condensed([tmp_path / "a" / "packed", tmp_path / "b" / "packed"]))


def all_alike(record):
    """Relevance is the ground truth, whatever the method."""
    relevance = np.isin(np.arange(len(record.tokens)), record.ground_truth).astype(float)
    return record._replace(relevance=relevance, pg2=1.0, mrr=1.0, rma=1.0, pta=1.0)


@pytest.mark.parametrize(
    ("methods", "input", "change", "kind"),
    [
        (LRPS, "causal", None, "gated"),
        (LRPS, "causal", all_alike, "plain"),
        (["lrp"], "causal", None, "causal"),
        (LRPS, "masked", None, "masked"),
    ],
)
def test_the_kind_of_a_model_follows_from_its_records(tmp_path, methods, input, change, kind):
    options = {} if change is None else {"change": change}
    (found,) = measured([packed(tmp_path, methods, benchmark={"input": input}, **options)])
    assert found.kind == kind


def test_the_gradient_is_the_better_norm(tmp_path):
    (found,) = measured([packed(tmp_path, ["gradient-l1", "gradient-l2", "lrp"])])
    averages = {name: metrics(found.methods[name]).mean() for name in ("gradient-l1", "gradient-l2")}
    better = max(averages, key=averages.get)
    assert min(averages.values()) < averages[better]
    assert found.method("gradient") is found.methods[better]
    assert found.method("lrp") is found.methods["lrp"]
    assert found.method("alti") is None


def test_two_methods_are_compared_where_both_are():
    def columns(ids, values):
        return {"sample_id": np.array(ids), "mrr": np.array(values, dtype=float)}

    one, other = columns([1, 3, 5, 7], [0.1, 0.3, 0.5, 0.7]), columns([3, 4, 7], [1, 2, 3])
    assert common(one, other).tolist() == [3, 7]
    np.testing.assert_allclose(difference(one, other, "mrr"), [0.3 - 1, 0.7 - 3])
    assert METRICS[1] == "mrr"
