"""`Kagzi`: the one object of a program. It registers workflows and steps, starts runs, and hosts workers.

There is no global state: a program may have several, a test makes its own. The URL chooses where runs live, and nothing
else in the program knows it. It is made in layers, each of which knows those below it only:

    Registrar   what the program declares (sdk/definitions)
    Connected   where runs live: settings, opening, the engine (connected.py)
    Client      starting and finding runs (client.py)
    Kagzi       hosting workers, being at home in web programs (kagzi.py)
"""

from kagzi.app.kagzi import Kagzi

__all__ = ["Kagzi"]
