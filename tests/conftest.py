"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# How fast an example is says something about the machine, which may have other work to do, and nothing about the code.
settings.register_profile("qq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("qq")

# Hundreds of nodes are started. Where no byte code may be kept, as in many images, each would compile all of it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
