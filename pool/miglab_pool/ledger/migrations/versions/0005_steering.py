"""What staff steer by hand: drained places, who is served next, messages, and whose act it was."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

BY_HAND = "\"by\" LIKE 'person:%' OR \"by\" LIKE 'service:%'"


def upgrade() -> None:
    for table, column in (
        ("gpus", sa.Column("draining", sa.Text, nullable=False, server_default="")),
        ("slices", sa.Column("draining", sa.Text, nullable=False, server_default="")),
        ("tickets", sa.Column("next_at", sa.Float)),
        ("leases", sa.Column("warn_by", sa.String, nullable=False, server_default="")),
        ("transitions", sa.Column("act", sa.String, nullable=False, server_default="")),
    ):
        op.add_column(table, column)
    op.execute(f"UPDATE transitions SET act = to_state WHERE {BY_HAND}")  # noqa: S608 -- constant
    op.create_index("transitions_acts", "transitions", ["id"], sqlite_where=sa.text("act != ''"))
    op.create_table(
        "notes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("by", sa.String, nullable=False),
        sa.Column("to_user", sa.String),
        sa.Column("to_server", sa.String),
        sa.Column("to_course", sa.String),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("state", sa.String, nullable=False),
    )
    op.create_index("notes_state", "notes", ["state"])
