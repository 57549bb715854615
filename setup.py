"""Builds the C++ kernels beside the Python packages, where there is a compiler for them.

Everything else about the package is in pyproject.toml. Without a compiler the installation goes on,
and the model runs on torch's kernels.
"""

from pathlib import Path

import pybind11
from setuptools import Extension, setup

SOURCES = Path("src/firstlight/kernels/cpu/native")
# Products and sums stay apart unless the source joins them: a compiler's choice would change bits.
FLAGS = ["-std=c++20", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]

setup(
    ext_modules=[
        Extension(
            "firstlight.kernels.cpu._native",
            sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=sorted(str(path) for path in SOURCES.glob("*.[hi]*")),
            include_dirs=[pybind11.get_include()],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ]
)
