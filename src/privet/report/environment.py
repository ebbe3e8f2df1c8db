"""The versions that a result depends on."""

from __future__ import annotations

import platform
from importlib import metadata

from privet import __version__

PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "scikit-learn")


def versions() -> dict[str, str]:
    """Versions of Privet, Python, the libraries that compute, and the platform; nothing that names the machine."""
    found = {"privet": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a trimmed installation is still worth recording
            found[package] = "not installed"
    found["platform"] = f"{platform.system()} {platform.machine()}"
    return found
