"""Text that somebody wrote, made harmless for terminals, logs and tables."""


def printable(text: str) -> str:
    """Return a text without control characters, which a terminal can show; each is a "?"."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def one_line(text: str) -> str:
    """Return a text as one printable line, so that its lines forge no others."""
    return printable(" ".join(text.splitlines()))
