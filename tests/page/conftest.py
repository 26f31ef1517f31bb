"""The tests of the page log in with the provider that those of tokens have, too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "oauth2"))
