"""Describe study files as a JSON Schema (draft 2020-12), for editors that check TOML."""

from typing import Any

from pydantic import BaseModel

from ressmooth.config import NAMES, OWN_PROTOCOL, PREFIXES, RunConfig
from ressmooth.plugins import NO_PLUGINS, Parameter, Plugins
from ressmooth.spec import schema
from ressmooth.spec.race import Race
from ressmooth.spec.reader import MAX_VALUES, SETTINGS, UNSEARCHED

Node = dict[str, Any]  # of a JSON Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAME = {"pattern": f"^{schema.NAME.pattern}$"}
ENQUEUE = {"enqueue": {"$ref": "#/$defs/enqueue"}}
BY_PROTOCOL = ("lr", *OWN_PROTOCOL)  # have no default that always holds
TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string"}


def study_schema(plugins: Plugins = NO_PLUGINS) -> Node:
    """Return the JSON Schema of a study file that is launched with these plug-ins."""
    fields = _properties(RunConfig)
    settings = {name: _value(name, fields[name], plugins) for name in SETTINGS}
    settings |= {name: _parameter(each) for name, each in plugins.parameters.items()}
    study = _properties(schema.Study)
    study["name"] |= NAME
    study["seeds"] = _seeds(study["seeds"])
    top = {name: _setting(name, node) for name, node in settings.items()}
    return {
        "$schema": DIALECT,
        "title": "ressmooth study",
        **_object("one question, written as a TOML file", {**study, **_other_keys(), **top}),
        "required": ["name"],
        "anyOf": [{"required": ["arms"]}, {"required": ["extends"]}],
        "$defs": {
            **{f"setting.{name}": node for name, node in settings.items()},
            "grid": _object("axes of all arms", {k: _list(_ref(k)) for k in _of_arms(settings)}),
            "arm": _object("one method under comparison", {**_of_arms(settings), **ENQUEUE}),
            "search": _object("how arms are searched", _properties(schema.Search)),
            "resources": _object("what a run asks for", _properties(schema.Resources)),
            "enqueue": _enqueue(settings),
        },
    }


def _seeds(node: Node) -> Node:
    """Return what `seeds` may be: a number, or a race."""
    fields = _properties(Race)
    fields["race"] = {"description": fields["race"]["description"], "const": True}
    number = {key: node.pop(key) for key in ("type", "minimum", "maximum")}
    return {**node, "anyOf": [number, {**_object("", fields), "required": ["race"]}]}


def _other_keys() -> dict[str, Node]:
    """Return the keys at the top that are no settings, besides those of `Study`."""
    arms = {
        "type": "object",
        "propertyNames": NAME,
        "additionalProperties": {"$ref": "#/$defs/arm"},
    }
    return {
        "extends": {"type": "string", "description": "study file, or bundled study, to start from"},
        **ENQUEUE,
        "arms": {"description": "the methods under comparison, by name", **arms},
        **{key: {"$ref": f"#/$defs/{key}"} for key in ("search", "grid", "resources")},
    }


def _of_arms(settings: dict[str, Node]) -> dict[str, Node]:
    """Return what each setting of an arm may be: also a grid."""
    return {
        name: {
            "description": node["description"],
            "anyOf": [{"$ref": f"#/properties/{name}"}, _several(schema.Grid, name)],
        }
        for name, node in settings.items()
        if name != "metric"
    }


def _setting(name: str, node: Node) -> Node:
    """Return what a setting at the top may be: one value, choices or a range."""
    kinds = [_ref(name)]
    if name not in UNSEARCHED:
        kinds.append(_several(schema.Choices, name))
        if node["type"] in ("integer", "number"):
            kinds.append(_range(name, node["type"]))
    return {"description": node["description"], "anyOf": kinds}


def _several(kind: type[BaseModel], name: str) -> Node:
    [(key, node)] = _properties(kind).items()
    listed = {"description": node["description"], **_list(_ref(name))}
    return {**_object("", {key: listed}), "required": [key]}


def _range(name: str, number: str) -> Node:
    fields = _properties(schema.Range)
    meaning = {key: {"description": node["description"]} for key, node in fields.items()}
    ends = {end: {**meaning[end], **_ref(name)} for end in ("low", "high")}
    step = {**meaning["step"], "type": number, "exclusiveMinimum": 0}
    return {**_object("", {**ends, "log": fields["log"], "step": step}), "required": list(ends)}


def _enqueue(settings: dict[str, Node]) -> Node:
    searched = {name: _ref(name) for name in settings if name not in UNSEARCHED}
    point = {**_object("values of searched settings", searched), "minProperties": 1}
    meaning = "points that are tried first in each branch; missing settings are sampled"
    return {"description": meaning, **_list(point)}


def _value(name: str, node: Node, plugins: Plugins) -> Node:
    """Return what one value of a setting may be, with the names that plug-ins add."""
    if name in BY_PROTOCOL:
        return {key: value for key, value in node.items() if key != "default"}
    if name not in NAMES:
        return node
    names: list[Node] = [{"enum": [*NAMES[name], *plugins.names(name)]}]
    prefixes = [{"pattern": f"^{prefix}."} for prefix in PREFIXES[name]]
    return {**node, "anyOf": names + prefixes}


def _parameter(parameter: Parameter) -> Node:
    default = {} if parameter.default is None else {"default": parameter.default}
    return {"description": "setting of a plug-in", "type": TYPES[parameter.type], **default}


def _properties(kind: type[BaseModel]) -> dict[str, Node]:
    """Return pydantic's schema of each field, without titles and null, which TOML does not have."""
    found = {}
    for name, node in kind.model_json_schema()["properties"].items():
        kinds = [each for each in node.pop("anyOf", []) if each["type"] != "null"]
        node |= {"anyOf": kinds} if len(kinds) > 1 else dict(*kinds)
        if node.get("default", "") is None:
            del node["default"]
        del node["title"]
        found[name] = node
    return found


def _object(description: str, properties: dict[str, Node]) -> Node:
    node = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"description": description, **node} if description else node


def _list(items: Node) -> Node:
    limits = {"minItems": 1, "maxItems": MAX_VALUES, "uniqueItems": True}
    return {"type": "array", "items": items, **limits}


def _ref(setting: str) -> Node:
    return {"$ref": f"#/$defs/setting.{setting}"}
