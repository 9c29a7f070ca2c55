"""Noticing that a process may open no more files. A connection is one, too: who wants one waits, and nothing says so,
since gRPC and the event loop try again in silence until others have ended."""

from __future__ import annotations

import errno
import logging
import os
from typing import Final

logger = logging.getLogger("kagzi.server")

_NO_MORE: Final = (errno.EMFILE, errno.ENFILE)


class OpenFiles:
    """`look` costs a few microseconds: it opens a file that is always there."""

    def __init__(self) -> None:
        self._out = False

    def look(self) -> None:
        """Says in the log when there are no more, and when there are again."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in _NO_MORE and not self._out:
                self._out = True
                logger.error(
                    "out of file descriptors (%s): new connections wait until others end; raise the limit (ulimit -n, "
                    "LimitNOFILE= of systemd), or find out who opens so many",
                    error.strerror,
                )
        else:
            if self._out:
                self._out = False
                logger.info("there are file descriptors again")
