"""Criteo's rows in Parquet: columns label, I1..I13, C1..C26, in any order, among any others."""

from __future__ import annotations

from ett.trainer.data.criteo_lines import MISSING_COUNT, MISSING_ID
from ett.trainer.data.criteo_text import CATEGORIES, COUNTS, LABEL
from ett.trainer.data.input_files import InputFiles
from ett.trainer.data.labelled_parquet import LabelledParquet
from ett.trainer.data.parquet_columns import integers, labels
from ett.trainer.data.parquet_source import ColumnRule


class CriteoParquet(LabelledParquet):
    """Implements `RowSource`; ids are any int64, so a null category, 2^32, is an id that data should not use itself."""

    def __init__(self, files: InputFiles) -> None:
        rules: dict[str, ColumnRule] = {LABEL: labels()}
        rules |= {name: integers(null=MISSING_COUNT) for name in COUNTS}
        rules |= {name: integers(null=MISSING_ID) for name in CATEGORIES}
        super().__init__(files, rules, LABEL)
