"""Three workflows and their tests, for docs/testing.md: one that is right, and two that a crash shows to be wrong."""
