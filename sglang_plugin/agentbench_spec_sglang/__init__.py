"""DLite as a speculative algorithm of SGLang. SGLang calls `register` in each of its processes."""

from __future__ import annotations

import logging

NAME = "DLITE"


def register() -> None:
    """Register the algorithm, unless SGLang lacks what it relies on: then one ERROR in the log, and nothing else."""
    from .relied_on import TESTED, first_mismatch, source_root

    log = logging.getLogger(__name__)
    mismatch = first_mismatch(source_root())
    if mismatch is not None:
        log.error("%s is not registered: %s. Tested with SGLang %s.", NAME, mismatch, ", ".join(TESTED))
        return
    from .algorithm import add_to_registry

    add_to_registry()
