"""Native extensions of ett: sources stand beside the Python that uses them. Everything else is in pyproject.toml."""

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup

EXTENSIONS = {
    "ett._accounting": "ett/_accounting.cpp",
    "ett._event_parser": "ett/_event_parser.cpp",
    "ett._ring": "ett/_ring.cpp",
    "ett.checkpoint._dense_digest": "checkpoint/_dense_digest.cpp",
    "ett.checkpoint._digest": "checkpoint/_digest.cpp",
    "ett.checkpoint._ids": "checkpoint/_ids.cpp",
    "ett.checkpoint.policy._row_map": "checkpoint/policy/_row_map.cpp",
    "ett.checkpoint.capture._staged_ids": "checkpoint/capture/_staged_ids.cpp",
    "ett.hooks._around": "ett/hooks/_around.cpp",
    "ett.trainer.data._criteo": "trainer/data/_criteo.cpp",
    "ett.trainer.data._nulls": "trainer/data/_nulls.cpp",
    "ett.trainer.embedding._row_ferry": "trainer/embedding/_row_ferry.cpp",
    "ett.trainer.sparse._index": "trainer/sparse/_index.cpp",
    "ett.trainer.sparse._rows": "trainer/sparse/_rows.cpp",
}

setup(
    ext_modules=[
        Pybind11Extension(
            name,
            [source],
            cxx_std=17,
            include_dirs=["."],  # a header of another folder is named from the root
            # Bits of a sum are those of any processor; a square root sets no errno, so that vectors can have one.
            extra_compile_args=["-O3", "-pthread", "-ffp-contract=off", "-fno-math-errno"],
            extra_link_args=["-pthread"],
            depends=[str(header) for folder in (Path(source).parent, Path("ett")) for header in folder.glob("_*.hpp")],
        )
        for name, source in EXTENSIONS.items()
        if Path(source).exists()
    ]
)
