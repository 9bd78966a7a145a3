"""The connection to a Ray cluster, and what its nodes must have in common with this process."""

from __future__ import annotations

import os
import platform
import warnings
from functools import cache
from typing import Any

from maskwright.errors import InputError, RunError, cut_message
from maskwright.machine import hash_package

RAY = "ray"


def names_ray(on: str) -> bool:
    """Whether `--on` means a Ray cluster: `ray`, or `ray://HOST:PORT`."""
    return on == RAY or on.startswith(f"{RAY}://")


def find_address(on: str) -> str | None:
    return None if on == RAY else on


@cache
def connect_ray(address: str | None) -> Any:
    """Ray's package, connected; without an address, to the cluster that RAY_ADDRESS names, or to a new one here."""
    try:
        import ray
    except ImportError as error:
        raise InputError("--on ray needs the package `ray`: pip install 'maskwright[cluster]'") from error
    if not ray.is_initialized():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a wrong address, which the error below tells too
                ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            named = address or os.environ.get("RAY_ADDRESS") or "a new cluster on this machine"
            raise InputError(
                f"cannot connect to Ray at {named}: {cut_message(error)}; check the address and that it runs this"
                " version of Ray"
            ) from error
    return ray


def check_same_code(code: str) -> None:
    """On a node: refuse to work for a process with another version of this package."""
    if hash_package() != code:
        raise RunError(
            f"{platform.node()} has another version of maskwright than this process; install the same one on all nodes"
        )
