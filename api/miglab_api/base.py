"""What all wire models have in common: strict, frozen, and typed by the same few words.

Nothing of the lab may be imported here: pool, spawner, hub and command line all stand on it.
"""

from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

USER_MAX = 255
SERVER_MAX = 255
COURSE_MAX = 255
SHAPE_MAX = 64
REASON_MAX = 500
EXPECTED_MAX = 32
COUNT_MAX = 1000
AGE_MAX_S = 10 * 366 * 24 * 3600.0

User = Annotated[str, Field(min_length=1, max_length=USER_MAX)]
Server = Annotated[str, Field(max_length=SERVER_MAX)]
Course = Annotated[str, Field(min_length=1, max_length=COURSE_MAX)]
ShapeText = Annotated[str, Field(min_length=1, max_length=SHAPE_MAX)]
ReasonText = Annotated[str, Field(max_length=REASON_MAX)]
ExpectedState = Annotated[str, Field(max_length=EXPECTED_MAX)]
Age = Annotated[float, Field(ge=0, le=AGE_MAX_S, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WallTime = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
ZoneName = Annotated[str, Field(min_length=1, max_length=64)]
RESERVED_MAX = 10_000
USER_ID_MAX = 64
UserId = Annotated[str, Field(max_length=USER_ID_MAX)]
USER_ID_KEY = "miglab_user_id"
"""The key under which the hub's answer about a token holds the user's id, beside the name."""


class WireModel(BaseModel):
    """The base of every model that passes between processes: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, row: Any, **overrides: Any) -> Self:
        """Build the model from a row's fields of the same name, and from the overrides.

        Args:
            row: of a class that declares its fields, as wire models do; those that are named are
                not taken from it.
            overrides: the values of fields that the row lacks, or that replace the row's.
        """
        shared = {name: getattr(row, name) for name in _shared_fields(cls, row.__class__)}
        return cls.model_validate(shared | overrides)


@cache
def _shared_fields(model: type[WireModel], row: type) -> tuple[str, ...]:
    declared = getattr(row, "model_fields", {})
    return tuple(name for name in model.model_fields if hasattr(row, name) or name in declared)


class Refusal(WireModel):
    """The body of every answer that is an error: a word for machines, a sentence for people.

    Attributes:
        way_on: the field of the request, such as ``anyway``, with which the same request is not
            refused; empty if there is none.
    """

    reason: str
    message: str
    way_on: str = ""
