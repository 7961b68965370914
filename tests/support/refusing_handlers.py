"""Handlers that refuse a currency, and whose messages are made at different places of their module."""

FORMAT = "unknown currency"


class Refused(Exception):
    """Words of a docstring, such as gulden, are no words of a message."""

    def __init__(self, currency: str) -> None:
        super().__init__(f"refused tender {currency}")


def refuse(currency: str, kind: str = "inline") -> None:
    """Words of a docstring, such as zorkmid, are no words of a message."""
    if kind == "class":
        raise Refused(currency)
    if kind == "constant":
        raise ValueError(f"{FORMAT} {currency}")
    if kind == "name":
        _ = amuont  # type: ignore[name-defined]  # noqa: F821
    if kind == "choice" and currency not in {"ducat", "florin"}:
        raise ValueError(f"{currency} is no ducat or florin")
    raise ValueError(f"unknown tender {currency} in field 'total'")
