"""What a student answers, first and later, and the sentence that answers them.

The first prediction and the first claim count. Later ones are welcome, and kept as later ones, with
their times, for the student and for whoever marks.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence, Judgement, StudentAnswer
from labkit.records import Verdict, now_text

LATER = "Your later"


def after(earlier: Evidence, evidence: Evidence) -> Evidence:
    """The evidence of a run that begins after an earlier one, whose first answers count.

    Args:
        earlier: what was measured and answered before; nothing, at first.
        evidence: of the run, with the prediction for it.
    """
    if not earlier.points or not earlier.is_students:
        return evidence
    later_answers = earlier.later_answers
    if (prediction := evidence.prediction) is not None:
        later_answers += (StudentAnswer(prediction.at, prediction=prediction),)
    return replace(
        evidence,
        prediction=earlier.prediction,
        verdict_read=earlier.verdict_read,
        claimed=earlier.claimed,
        later_answers=later_answers,
    )


def about_these_data(
    evidence: Evidence, judgement: Judgement, earlier: Judgement | None
) -> Evidence:
    """The evidence with its judgement, and a claim from an earlier run only if that had the same.

    Where the new data say something else, they are asked about anew, and the claim about the
    earlier run stays as what it was.
    """
    is_same = earlier is None or earlier.verdict is judgement.verdict
    if is_same or evidence.verdict_read is None:
        return replace(evidence, judgement=judgement)
    about_earlier = StudentAnswer(
        evidence.claimed, claim=evidence.verdict_read, is_of_earlier_run=True
    )
    later_answers = (*evidence.later_answers, about_earlier)
    return replace(
        evidence, judgement=judgement, verdict_read=None, claimed="", later_answers=later_answers
    )


def with_claim(evidence: Evidence, claim: Verdict | None) -> Evidence:
    """The evidence with a claim: the first one counts, another one later is kept as such."""
    if claim is None or not evidence.has_question:
        return evidence
    if evidence.verdict_read is None:
        return replace(evidence, verdict_read=claim, claimed=now_text())
    claims = [
        answer.claim
        for answer in evidence.later_answers
        if answer.claim and not answer.is_of_earlier_run
    ]
    if claim is (claims[-1] if claims else evidence.verdict_read):
        return evidence
    later_answers = (*evidence.later_answers, StudentAnswer(now_text(), claim=claim))
    return replace(evidence, later_answers=later_answers)


def claims_in_words(evidence: Evidence) -> str:
    """What the student said of the claim, first and later; empty before."""
    if evidence.verdict_read is None or evidence.judgement is None:
        return ""
    claims = [
        answer.claim
        for answer in evidence.later_answers
        if answer.claim and not answer.is_of_earlier_run
    ]
    later = f" {LATER} answer: {claims[-1]}." if claims else ""
    return f"You say: {evidence.verdict_read}.{later}"


def sentence(judgement: Judgement, claim: str) -> str:
    """The verdict in words, with what this tier was expected to show."""
    if judgement.expected == store.NOT_APPLICABLE:
        return f"“{claim}”: not a question for this device, because {judgement.reason}."
    if judgement.mismatch:
        return (
            f"“{claim}”: {judgement.verdict}: {judgement.reason}. "
            f"But this is not what the title says: {judgement.mismatch}."
        )
    if judgement.verdict is Verdict.UNDECIDED:
        return f"“{claim}”: undecided: {judgement.reason}."
    return f"“{claim}”: {judgement.verdict}, as expected here. The data: {judgement.reason}."
