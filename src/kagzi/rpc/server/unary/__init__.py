"""The unary worker calls, for clients that know neither tokens nor histories: `calls` answers, `rules` decides."""
