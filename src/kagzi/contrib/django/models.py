"""None: Kagzi's tables are its own. But only apps with this module are told that `manage.py migrate` has ended."""
