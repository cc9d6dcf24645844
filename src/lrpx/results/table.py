"""Numbers of a result as a table, for pandas and for a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import Any, NamedTuple

from ..errors import import_optional


class DataTable(NamedTuple):
    """Rows with a value for each of the columns: integers, floats and texts."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def to_frame(self) -> Any:
        """The table as a pandas ``DataFrame``."""
        pd = import_optional("pandas", "to_frame()", extra="viz")
        return pd.DataFrame(self.rows, columns=list(self.columns))

    def to_csv(self) -> str:
        r"""The table as CSV, with a header. Floats are read back to the last digit.

        All texts are quoted: without quotes, Python's ``csv`` writes a token that holds ``\r``, which ends a line for whoever
        reads it, and a spreadsheet may cut off leading spaces.
        """
        file = io.StringIO()
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([float(v) if isinstance(v, float) else v for v in row] for row in self.rows)
        return file.getvalue()
