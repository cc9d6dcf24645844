"""The commands for condensed records: what they write, print and refuse."""

import pytest
from evaluation_tools import made_up

pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def test_pack_check_and_results(lrpx_command, tmp_path):
    made_up(tmp_path / "runs" / "one", ["lrp", "attnlrp"])
    made_up(tmp_path / "runs" / "two", ["alti"])
    code, out, err = lrpx_command("records", "pack", "runs", "--out", "records")
    assert code == 0, err
    assert out == "records/one: 30 samples, lrp, attnlrp\nrecords/two: 30 samples, alti\n"
    code, out, err = lrpx_command("records", "check", "records")
    assert code == 0, err
    assert out.splitlines()[1] == "records/two: holds. made-up, float32, at input, 30 samples: alti"
    code, out, err = lrpx_command("results", "records", "--output", "page.md")
    assert (code, out) == (0, ""), err
    assert "## made-up" in (tmp_path / "page.md").read_text()


def test_one_that_does_not_hold_leaves_the_others(lrpx_command, tmp_path):
    for name in ("one", "two"):
        made_up(tmp_path / "runs" / name, ["lrp"])
    lrpx_command("records", "pack", "runs", "--out", "records")
    with (tmp_path / "records" / "one" / "scores.parquet").open("ab") as file:
        file.write(b"x")
    code, out, err = lrpx_command("records", "check", "records")
    assert code == 1
    assert out.startswith("records/two: holds.")
    assert err.count("lrpx:") == 1
    assert "the file was changed or damaged" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["records", "check", "nothing"], "nothing has no condensed records"),
        (
            ["records", "check", "a/run"],
            "a/run is a run. Expected: condensed records. Type: lrpx",
        ),
        (["records", "pack", "nothing", "--out", "x"], "there is no folder 'nothing'"),
        (["records", "pack", "a/run", "b/run", "--out", "x"], "two runs are called run"),
        (
            ["results", "a", "--output", "page.md"],
            "Expected: condensed records. Type: lrpx records pack",
        ),
        (
            ["results", "a/run/manifest.json", "--output", "page.md"],
            "is not condensed records: it is a file. lrpx records pack makes them.",
        ),
    ],
)
def test_wrong_use(lrpx_command, tmp_path, arguments, message):
    for name in "ab":
        made_up(tmp_path / name / "run", ["lrp"])
    code, _, err = lrpx_command(*arguments)
    assert code == 2
    assert message in " ".join(err.split())
