"""What holds for all tests."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# How fast an example is says something about the machine, which may have other work to do, and nothing about the code.
settings.register_profile("qq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("qq")

# Processes that a test starts run this tree, wherever they are started.
ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))

# Hundreds of nodes are started. Where no byte code may be kept, as in many images, each would compile all of it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
