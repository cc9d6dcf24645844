"""A flow as data: matrices, frames and graphs with the same numbers, saved and read back; what is left out is said."""

import json

import numpy as np
import pytest
import tiny
import tiny_tokenizers

import lrpx
from lrpx.errors import InputError, NonFiniteError
from lrpx.results.flow import FlowStep, RelevanceFlow


@pytest.fixture(scope="module")
def flow():
    return lrpx.Explainer(tiny.build("causal:llama")).flow(list(range(20, 28)), target=50, contrast=60, share=0.8)


def test_it_says_what_it_is(flow):
    assert repr(flow).startswith("<RelevanceFlow attnlrp of '50' - '60': value ")
    assert flow.places == ["input", "attention.0", "block.0", "attention.1", "block.1"]
    assert flow.at == "input"
    assert flow.provenance["target"] == 50
    assert flow.share == 0.8
    assert flow.threshold is None
    assert flow.residual == flow.value - flow.relevance[0].sum()


def test_a_matrix_has_the_kept_edges(flow):
    for step in flow.steps:
        matrix = flow.matrix(step.upper, step.lower)
        assert matrix.shape == (8, 8)
        assert (matrix != 0).sum() == len(step.edges)
        assert matrix.sum() == pytest.approx(step.relevance.sum())
        t, s = step.edges[0]
        assert matrix[t, s] == step.relevance[0]
    np.testing.assert_array_equal(flow.matrix("last", "attention.1"), flow.matrix("block.1", "attention.1"))
    with pytest.raises(InputError, match=r"between=\['input', 'block.0'\], share=1"):
        flow.matrix("block.0", "input")
    with pytest.raises(InputError, match=r"has no place 'block.9': .* Did you mean 'block.1'\? Known: attention.0, "):
        flow.matrix("block.9", "input")
    with pytest.raises(InputError, match=r"the upper place comes first: matrix\('attention.0', 'input'\)"):
        flow.matrix("input", "attention.0")


def test_the_whole_matrix_sums_to_the_relevance():
    explainer = lrpx.Explainer(tiny.build("causal:gpt2"))
    whole = explainer.flow(list(range(20, 28)), between=("input", "last"), share=1)
    e = explainer(list(range(20, 28)))
    np.testing.assert_allclose(whole.matrix("last", "input").sum(0), e.relevance, atol=1e-12)
    np.testing.assert_array_equal(whole.relevance[0], e.relevance)
    assert whole.value == e.value
    assert whole.shares().tolist() == [1, 1]


def test_frames_and_graphs_have_all_edges(flow):
    frame, graph = flow.to_frame(), flow.to_networkx()
    assert len(frame) == flow.edge_count == graph.number_of_edges()
    assert frame.iloc[0][
        ["upper", "upper_position", "upper_text", "upper_token", "lower", "lower_position"]
    ].tolist() == [
        *("logit", -1, "50", "50", "block.1", 7),
    ]
    for row in frame.itertuples():
        ends = (row.upper, row.upper_position), (row.lower, row.lower_position)
        assert graph.edges[ends]["relevance"] == row.relevance
    assert graph.nodes["input", 7]["relevance"] == flow.relevance[0, 7]
    assert graph.nodes["logit", -1]["relevance"] == flow.value
    # All is reached from the logit.
    networkx = pytest.importorskip("networkx")
    assert networkx.descendants(graph, ("logit", -1)) == set(graph.nodes) - {("logit", -1)}


def test_what_is_left_out_is_said(flow):
    frame = flow.left_out()
    assert frame["place"].tolist() == flow.places[::-1]
    assert (frame["token_share"] >= 0.8).all()
    assert frame["tokens"].tolist() == flow.kept.sum(1)[::-1].tolist()
    assert frame["edge_share"].iloc[:-1].tolist() == [step.kept for step in flow.steps]
    assert min(step.kept for step in flow.steps) < 1  # something is left out


def test_it_is_saved_to_the_last_digit(flow, tmp_path):
    flow.save(tmp_path / "flow.json")
    again = lrpx.RelevanceFlow.load(tmp_path / "flow.json")
    assert json.dumps(again.to_dict()) == json.dumps(flow.to_dict())
    np.testing.assert_array_equal(again.relevance, flow.relevance)
    np.testing.assert_array_equal(again.kept, flow.kept)
    assert isinstance(again.steps[0], FlowStep)
    assert again.units == flow.units
    assert again.target == flow.target
    assert again.to_html() == flow.to_html()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "generation"}, "not a saved RelevanceFlow"),
        ({"schema": 9}, "schema 9: this version of lrpx reads schema 1"),
        ({"more": 1}, r"these fields differ: \['more'\]"),
        ({"steps": 3}, "a field is not what it should be"),
        ({"kept": [[0]]}, "a field is not what it should be"),
        ({"steps": []}, "expected .* and 4"),
    ],
)
def test_what_is_no_saved_flow(flow, change, message):
    with pytest.raises(InputError, match=message):
        RelevanceFlow.from_dict(flow.to_dict() | change)


def test_files_that_hold_no_flow(flow, tmp_path):
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="holds list, not a flow"):
        RelevanceFlow.load(tmp_path / "list.json")
    (tmp_path / "no.json").write_text("no")
    with pytest.raises(InputError, match="is not JSON"):
        RelevanceFlow.load(tmp_path / "no.json")
    flow.save(tmp_path / "flow.json")
    with pytest.raises(InputError):
        lrpx.Explanation.load(tmp_path / "flow.json")


def test_numbers_that_are_not_finite(flow):
    with pytest.raises(NonFiniteError, match="the attnlrp flow holds NaN"):
        RelevanceFlow(**{**vars(flow), "relevance": flow.relevance * np.nan})


def test_tokens_of_a_text():
    tokenizer = tiny_tokenizers.byte_level()
    flow = lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer).flow("ab c", threshold=0.01)
    assert flow.text == "ab c"
    assert "".join(unit.text for unit in flow.units) == "ab c"
    assert flow.threshold == 0.01
