"""What a package says of its home: the project's addresses, and README's links, which are relative in the repository.

The home is the repository that the package is built from: GitHub's own variables name it, or else the clone's origin.
Without one the links stay as they are.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?!https?://|#|mailto:)[^)\s]+)\)")
_SSH = re.compile(r"(ssh://)?git@(?P<host>[^:/]+)[:/](?P<path>.+)")


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        folder = Path(self.root)
        text, home = (folder / "README.md").read_text(encoding="utf-8"), find_home(folder)
        if home is not None:
            text = point_home(text, home, f"v{metadata['version']}")
            metadata["urls"] = {
                "Source": home,
                "Documentation": f"{home}/tree/main/docs",
                "Changelog": f"{home}/blob/main/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def find_home(folder: Path) -> str | None:
    """The web address of the repository; None where the folder is no clone of a public one."""
    server, repository = (os.environ.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY"))
    if server and repository:
        return f"{server}/{repository}"
    try:
        asked = ["git", "-C", str(folder), "config", "--get", "remote.origin.url"]
        origin = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    address = origin.removesuffix(".git")
    ssh = _SSH.fullmatch(address)
    if ssh is not None:
        return f"https://{ssh['host']}/{ssh['path']}"
    return address if re.fullmatch(r"https://[^/@]+/.+", address) else None


def point_home(text: str, home: str, version: str) -> str:
    """Links to files of the repository as addresses of these files in a version."""

    def rewrite(link: re.Match[str]) -> str:
        kind = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({home}/{kind}/{version}/{link['target']})"

    return _LINK.sub(rewrite, text)
