"""What a course has reserved: a weekly or a single time, and how many of which shape."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("course", sa.String, nullable=False),
        sa.Column("shape", sa.String, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("weekdays", sa.Integer, nullable=False),
        sa.Column("first_date", sa.String, nullable=False),
        sa.Column("last_date", sa.String, nullable=False),
        sa.Column("from_time", sa.String, nullable=False),
        sa.Column("to_time", sa.String, nullable=False),
        sa.Column("tz", sa.String, nullable=False),
        sa.Column("grace_s", sa.Float, nullable=False),
        sa.Column("made_by", sa.String, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_index("reservations_state", "reservations", ["state"])
