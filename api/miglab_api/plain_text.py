"""Text that somebody wrote, made harmless for terminals, logs and tables."""

import unicodedata

JOINERS = "\u200c\u200d"  # of Persian and Indic letters, and of emoji


def printable(text: str) -> str:
    """Return a text that a terminal can show: any space is one, and a control character a "?"."""
    return "".join(map(_shown, text))


def _shown(sign: str) -> str:
    if unicodedata.category(sign) == "Zs":
        return " "
    return sign if sign.isprintable() or sign in JOINERS else "?"


def one_line(text: str) -> str:
    """Return a text as one printable line, so that its lines forge no others."""
    return printable(" ".join(text.splitlines()))
