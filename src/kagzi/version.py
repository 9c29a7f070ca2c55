"""The version of the package: the only place that states it."""

__version__ = "0.1.0"


def numbers_of(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, as far as they go: 0.10.2rc1 is (0, 10)."""
    numbers: list[int] = []
    for part in version.split("."):
        if not (part.isascii() and part.isdigit()):
            break
        numbers.append(int(part))
    return tuple(numbers)
