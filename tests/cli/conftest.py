"""The command, run in this process."""

import pytest

from lrpx.cli import main as cli


@pytest.fixture
def lrpx_command(tmp_path, monkeypatch, capsys):
    """Run ``lrpx`` in this process, in an empty folder: exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["lrpx", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return run
