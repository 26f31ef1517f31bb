"""Install packages into the virtual environment whose interpreter runs this: `install.py ARGUMENTS OF pip install`.

Several installations, one after the other, have `--` between them.

uv does it, in a sixth of pip's time: for each package pip looks at all files that the index has of it, thousands for
some. pip does it where uv cannot be had, where uv fails, and where pip is configured in a way that uv cannot follow.

As long as it is done, and after it was interrupted, the environment has a file `unfinished`: what there is in it may be
there in part.
"""

from __future__ import annotations

import os
import signal
import sys
from ast import literal_eval
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, call, check_output

SETUP = Path(__file__).with_name("setup.txt")
UV = Path(sys.executable).with_name("uv")
UNFINISHED = Path(sys.prefix, "unfinished")
PIP = ["-m", "pip", "--disable-pip-version-check"]

# What pip is told about where packages come from, and by which variable uv is told the same.
SAME_FOR_UV = {
    "cert": "SSL_CERT_FILE",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
}
# What has nothing to do with which packages are found.
OF_NO_CONCERN = {
    "cache-dir",
    "config-file",
    "default-timeout",
    "disable-pip-version-check",
    "no-cache-dir",
    "no-input",
    "no-python-version-warning",
    "progress-bar",
    "quiet",
    "require-virtualenv",
    "retries",
    "root-user-action",
    "timeout",
    "verbose",
}


def for_uv(settings: dict[str, str]) -> dict[str, str] | None:
    """The environment variables that have uv find what pip finds with these settings; None if there are none."""
    if settings.keys() - SAME_FOR_UV.keys() - OF_NO_CONCERN:
        return None
    return {
        variable: ("," if key == "find-links" else " ").join(settings[key].split())
        for key, variable in SAME_FOR_UV.items()
        if key in settings
    }


def settings_of_pip() -> dict[str, str]:
    """What pip is configured with for an installation, by files and by the environment, which counts for most."""
    listed = check_output([sys.executable, *PIP, "config", "list"], text=True)
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found:
            found[section][key] = literal_eval(value)
    return {key: value for settings in found.values() for key, value in settings.items()}


def bring_tools() -> None:
    """Have pip and uv in the environment: soonest by the pip of the interpreter that made it, if that has one."""
    wanted = ["install", "--quiet", "--no-compile", "--only-binary", ":all:", "--require-hashes", "-r", SETUP]
    original = sys._base_executable  # noqa: SLF001 - there is no other name for it
    if call([original, *PIP, "--python", sys.executable, *wanted], stderr=DEVNULL) != 0:
        call([sys.executable, "-m", "ensurepip"], stdout=DEVNULL)
        call([sys.executable, *PIP, *wanted], stderr=DEVNULL)


def main(arguments: list[str]) -> int:
    """Install; returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends this without a word, as it ends what is called
    UNFINISHED.touch()
    status = install_all(arguments)
    UNFINISHED.unlink()
    if status:
        print(
            "not all packages could be installed, for the reason above; the same command tries again",
            file=sys.stderr,
        )
    return status


def install_all(arguments: list[str]) -> int:
    """Carry out one installation after the other; returns the exit status of the first that fails."""
    if find_spec("pip") is None or not UV.exists():
        bring_tools()
    variables = for_uv(settings_of_pip()) if UV.exists() else None
    while arguments:
        end = arguments.index("--") if "--" in arguments else len(arguments)
        if status := install(arguments[:end], variables):
            return status
        arguments = arguments[end + 1 :]
    return 0


def install(arguments: list[str], variables: dict[str, str] | None) -> int:
    """Install with uv, if there are variables for it, or else with pip; returns the exit status."""
    if variables is not None:
        uv = [UV, "pip", "install", "--quiet", "--python", sys.executable]
        if call([*uv, *arguments], env=variables | os.environ) == 0:
            return 0
        print("uv has failed: pip is tried", file=sys.stderr)
    return call([sys.executable, *PIP, "install", "--quiet", "--no-compile", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
