"""Which ledger this is, and which Docker engine it was kept with: numbers alone can come again."""

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    identity = op.create_table(
        "identity",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("ledger", sa.String, nullable=False),
        sa.Column("engine", sa.String, nullable=False),
    )
    op.bulk_insert(identity, [{"id": 1, "ledger": uuid4().hex, "engine": ""}])
