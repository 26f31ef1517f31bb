"""Which packages an installed qq has; all else about it is in pyproject.toml.

`qq_spark` lies beside `qq`, because it is used without the broker. `cluster` lies inside of `qq` there: beside it, it
would take the place of an application's package of that name. The command `qq` finds it (qq/process/packages.py).
`chaos` is used from a checkout, and not installed.
"""

import shutil
from pathlib import Path

from setuptools import find_packages, setup

# An earlier build in this directory may have left modules there that are gone by now, and they would be packed, too.
shutil.rmtree(Path(__file__).parent / "build" / "lib", ignore_errors=True)

setup(
    packages=[
        *find_packages(include=["qq", "qq.*", "qq_spark", "qq_spark.*"]),
        *(f"qq.bundled.{package}" for package in find_packages(include=["cluster", "cluster.*"])),
    ],
    package_dir={"qq.bundled.cluster": "cluster"},
)
