"""The devices that a run was trained on. It may move to another one when it resumes."""

from ressmooth.store.rows import RunRow

EARLIER = "earlier devices"  # in the versions of a run that has moved


def devices_of(run: RunRow) -> list[str]:
    """Return the devices of a run in the order of its epochs."""
    before = (run.versions or {}).get(EARLIER)
    found = [*(before.split(", ") if before else []), run.device]
    return [name for name in dict.fromkeys(found) if name]
