"""How is the probe started without touching the code? Staged beside the package, first on PYTHONPATH."""

import os
import sys


def _activate() -> None:
    try:
        from spike_probe.bootstrap import activate

        activate()
    except Exception as error:
        sys.stderr.write("spike probe: not activated: %s\n" % error)


def _chain() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = list(sys.path)
    mine = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in path if os.path.abspath(entry or os.curdir) != here]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.path[:] = path + [entry for entry in sys.path if entry not in path and entry != here]
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)


_activate()
_chain()
