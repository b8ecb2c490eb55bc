"""Alembic's entry: the ledger hands over its own connection, inside its own transaction."""

from alembic import context

from miglab_pool.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
