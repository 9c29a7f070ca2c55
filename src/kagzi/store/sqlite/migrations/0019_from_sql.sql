-- Functions with which SQL starts runs are PostgreSQL's alone. SQLite has none.
SELECT 1;
