"""Studies for tests, from the tables of a study file."""

from dataclasses import replace

from ressmooth.spec import read_stored


def study(
    arms,
    *,
    search=None,
    resources=None,
    seeds=1,
    confirm=0,
    name="s",
    grid=None,
    reference=None,
    **settings,
):
    common = {"dataset": "digits", "fraction": 0.2, "epochs": 3, **settings}
    common = {key: value for key, value in common.items() if key not in (grid or {})}
    spec = read_stored(
        {
            "name": name,
            "description": "",
            **_seeds(seeds),
            "confirm": confirm,
            "settings": common,
            "search": search or {},
            "grid": grid or {},
            "arms": {arm: _arm(table) for arm, table in arms.items()},
            "resources": resources or {},
            **({"reference": reference} if reference else {}),
        }
    )
    return replace(spec, text=f'name = "{name}"\n')


def _arm(table):
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    return {
        "fixed": {k: value for k, value in table.items() if k not in tables and k != "enqueue"},
        "grid": {key: value["grid"] for key, value in tables.items() if "grid" in value},
        "space": {key: value for key, value in tables.items() if "grid" not in value},
        **{key: value for key, value in table.items() if key == "enqueue"},
    }


def _seeds(seeds):
    if isinstance(seeds, dict):  # a race
        return {"seeds": seeds["at_least"], "most_seeds": seeds["at_most"]}
    return {"seeds": seeds}
