"""What must hold after every transaction, on the rows themselves.

Triggers of the test's own note which runs a transaction touched, so nothing depends on what the product says it did.
Each touched run is read and compared with what it was: which transaction may change what is written down here a second
time, independent of the store. Numbers in brackets name the invariant that a check holds:

 (1) an end is final                                  (6) a due run is claimed once per token
 (2) only the newest token writes                     (7) nothing happens before its time
 (3) a step's recorded end is never replaced         (11) one live run per external id
 (4) what was acknowledged survives every crash      (12) a cancellation is heard within a heartbeat
 (5) failures stay within the policy's attempts      (13) a run with a live worker moves on
                                                     (15) nothing crosses namespaces
"""
