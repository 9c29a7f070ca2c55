"""Deterministic simulation: engines, workers and clients on virtual time, with faults from a seed.

`python -m kagzi.testing.simulation --seed 7 --log` runs one world and prints what happened in it, the same to the
letter every time. Everything between the SDK and SQLite is the product; what is made up is time, chance, the network
and the processes (`process`, `network`, `faults`), the application (`steps`, and `workload`, which executes the
`programs`), and the watchers that know what must hold (`checks` after every transaction, `ledger` at every step body,
`endings` when all is over).
"""
