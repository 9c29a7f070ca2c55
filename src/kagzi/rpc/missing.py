"""Errors about installations that cannot speak gRPC. Imports nothing of it, so that it can always be imported."""

from __future__ import annotations

from typing import Final

from kagzi.errors import MissingDependency

_PACKAGES: Final = ("grpc", "grpc_health", "grpc_reflection", "google")


def grpc_is_missing(error: ModuleNotFoundError) -> MissingDependency:
    """Returns what to raise instead of an import that failed; raises it as it is, if it is not about gRPC."""
    if error.name is not None and error.name.startswith("kagzi._proto"):
        return MissingDependency(
            "this installation of Kagzi was built without its code for gRPC (kagzi._proto). Install a released wheel "
            "or sdist, which have it; or build it anew without HATCH_BUILD_NO_HOOKS, in a checkout: pip install ."
        )
    if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
        raise error
    return MissingDependency('gRPC support is not installed. Run: pip install "kagzi[grpc]"')
