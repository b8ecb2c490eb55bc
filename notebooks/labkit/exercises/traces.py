"""Four programs that compute the same, three of them with a bottleneck that a trace shows.

They are told by letters, so that the trace is read and not the name. All of it runs in the child.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.exercises.code_checks import CodeVerdict

PLAIN = "plain"
INPUT, LAUNCHES, SYNCHRONISATION = "input", "launches", "synchronisation"
BOTTLENECKS: Mapping[str, str] = {"A": LAUNCHES, "B": SYNCHRONISATION, "C": INPUT}
PROGRAMS = (PLAIN, *BOTTLENECKS)
SIGNS: Mapping[str, str] = {
    INPUT: "between two steps no operation runs anywhere, for longer than a step takes",
    LAUNCHES: "there are very many short operations, and between them the device waits for more",
    SYNCHRONISATION: "an operation of the CPU waits for the device, which is then idle until it is "
    "given something new",
}
VOCABULARY = 256
LAYERS = 4


@public
def program(
    letter: str, *, batch: int, width: int, word_count: int, letters: int, rows: int
) -> Callable[[], Any]:
    """Two steps of a program, to be called again and again; they return the second's result.

    Args:
        letter: one of `PROGRAMS`.
        batch: samples of a step.
        width: of the layers.
        word_count: of the input, each of which is a sample several times.
        letters: of a word, which Python adds up in every step where the input is the bottleneck.
        rows: of a piece, where a product is launched in pieces.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    luck = torch.Generator().manual_seed(0)
    random_weights = torch.randn(LAYERS, width, width, generator=luck) * (2 / width) ** 0.5
    weights = list(random_weights.to(device, dtype))
    table = torch.randn(VOCABULARY, width, generator=luck).to(device, dtype)
    text = [chr(97 + number % 26) * letters for number in range(word_count)]
    numbers = torch.tensor(numbers_of(text)).to(device)
    kind = BOTTLENECKS.get(letter, PLAIN)

    def step() -> Any:
        read = torch.tensor(numbers_of(text)).to(device) if kind == INPUT else numbers
        x = table[read.repeat(batch // word_count)]
        for matrix in weights:
            pieces = x.split(rows) if kind == LAUNCHES else (x,)
            results = [torch.relu_(piece @ matrix) for piece in pieces]
            x = torch.cat(results) if kind == LAUNCHES else results[0]
            if kind == SYNCHRONISATION:
                x.mean().item()  # as if to write it into a log
        return x

    def two_steps() -> Any:
        step()
        return step()

    return two_steps


def numbers_of(text: list[str]) -> list[int]:
    """A number for each word, by way of its letters: what a tokeniser in Python takes time for."""
    return [sum(ord(letter) for letter in syllable) % VOCABULARY for syllable in text]


@public
def check_bottlenecks(answers: Mapping[str, str]) -> CodeVerdict:
    """Judge which program has which bottleneck.

    Args:
        answers: for A, B and C one of "input", "launches" and "synchronisation".

    Raises:
        WrongArgument: a letter is missing, or an answer is something else; "?" is no answer yet.
    """
    accepted_answers = (*SIGNS, "?")
    if set(answers) != set(BOTTLENECKS) or not all(
        answer in accepted_answers for answer in answers.values()
    ):
        raise WrongArgument(
            f"check_bottlenecks takes one of {', '.join(SIGNS)} for each of "
            f"{', '.join(BOTTLENECKS)}, not {dict(answers)!r:.80}."
        )
    if "?" in answers.values():
        return CodeVerdict(False, "write down what each trace shows first")
    for letter, bottleneck in BOTTLENECKS.items():
        if answers[letter] != bottleneck:
            sign = SIGNS[answers[letter]]
            return CodeVerdict(False, f"look at {letter} again: with {answers[letter]}, {sign}")
    return CodeVerdict(
        True, "; ".join(f"{letter}: {SIGNS[b]}" for letter, b in BOTTLENECKS.items())
    )
