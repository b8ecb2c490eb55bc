"""What a person set by hand and a restart must not forget: one row."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    desk = op.create_table(
        "desk",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("paused", sa.Text, nullable=False),
    )
    op.bulk_insert(desk, [{"id": 1, "paused": ""}])
