"""The ledger's words are those of the glossary: a reservation is reserved, not kept."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("UPDATE reservations SET state = 'reserved' WHERE state = 'kept'")
    for column in ("from_state", "to_state"):
        op.execute(
            f"UPDATE transitions SET {column} = 'reserved' "  # noqa: S608
            f"WHERE what = 'reservation' AND {column} = 'kept'"
        )
