"""The phrases that pages and the command line share."""

import pytest

from miglab_api.tickets import borrower_of
from miglab_api.wording import server_in_words


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("", ""),
        ("lab2", "server “lab2”"),
        (borrower_of(""), "borrowed"),
        (borrower_of("lab2"), "borrowed by server “lab2”"),
    ],
)
def test_servers_in_words(server: str, words: str) -> None:
    """Nobody reads the name under which a server borrows."""
    assert server_in_words(server) == words
