"""What the engine asks of a database.

Every method is one transaction; `Work.apply` may be several. Every write made under a lease matches the lease's token
in the same statement, under the run's row lock. Every instant is the database's: a store is built with an optional
clock (`now`), which tests and the simulation pass and production does not; PostgreSQL then uses clock_timestamp(),
SQLite the host's clock, because the file is on the host.

Ends. Everything that makes a run terminal draws the consequences for other runs in the same transaction; each store has
one routine for that, `ended` in its `ends.py`.

Locks. All runs touched by a transaction are locked in (namespace, run_id) order before anything else, parents of runs
that it may end among them; workers rows are locked only in transactions that lock no run afterwards. Duties skip locked
rows instead of waiting.
"""
