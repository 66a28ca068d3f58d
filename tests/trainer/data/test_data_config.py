from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ett.errors import ConfigError
from ett.section import build_section
from ett.trainer.data.config import DataConfig, GenerateConfig


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        ({"max_bad_lines": -1}, "data.max_bad_lines is -1"),
        ({"window_rows": 0}, "data.window_rows is 0"),
        ({"heldout_share": 1.0}, "data.heldout_share is 1.0"),
        ({"heldout_share": -0.1}, "data.heldout_share is -0.1"),
        ({"heldout_share": float("nan")}, "data.heldout_share is nan"),
        ({"generate": {"rows": 0}}, "data.generate.rows is 0"),
        ({"generate": {"seed": -1}}, "data.generate.seed is -1"),
        ({"generate": {"seed": 2**32}}, "data.generate.seed is 4294967296"),
        ({"format": "parquet"}, 'data.format is "parquet"'),
        ({"shuffel": True}, "unknown key 'data.shuffel'"),
    ],
)
def test_a_wrong_value_fails_when_the_section_is_built(values: dict[str, Any], fact: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_section(DataConfig, values, "data")
    assert caught.value.fact == fact


def test_the_nested_table_is_built() -> None:
    config = build_section(DataConfig, {"path": "x", "generate": {"rows": 5, "seed": 2}}, "data")
    assert config == DataConfig(path="x", generate=GenerateConfig(rows=5, seed=2))


@pytest.mark.slow
@pytest.mark.parametrize("module", ["ett.trainer.data.config", "ett.trainer.data.cli"])
def test_config_loads_without_torch_or_numpy(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'fsspec'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
