"""Which packages an installed qq has; all else about it is in pyproject.toml.

`cluster` lies inside of `qq` there: beside it, it would take the place of an application's package of that name. The
command `qq` finds it (qq/packages.py). `chaos` is used from a checkout, and not installed.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["qq", "qq.*"]),
        *(f"qq.bundled.{package}" for package in find_packages(include=["cluster", "cluster.*"])),
    ],
    package_dir={"qq.bundled.cluster": "cluster"},
)
