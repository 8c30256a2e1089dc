"""The lines of keys, and syntax errors that show how to write it."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ressmooth.errors import ConfigError
from ressmooth.spec.toml import key_lines, parse

# Text that looks like other statements, inside of strings, lists, tables and comments.
TRAPS = ["[a]", "b = 1", "#", "''", '""', "]", "{", "[[", "=", ","]
traps = st.lists(st.sampled_from([*TRAPS, "\n"]), max_size=4).map("".join)
one_line = st.lists(st.sampled_from(TRAPS), max_size=4).map("".join)


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


scalars = (
    st.sampled_from(["1", "0.5", "true", "nan", "1979-05-27", '""', "''", '""""""'])
    | one_line.map(quoted)
    | one_line.map(lambda text: "'" + text.replace("'", "") + "'")
    | traps.map(lambda text: '"""' + text.replace('"', '\\"') + '"""')
    | traps.map(lambda text: '"""x""y' + text.replace('"', "") + '""""')
    | traps.map(lambda text: "'''it's" + text.replace("'", "") + "'''''")
)
comments = one_line.map("# {}".format)


def containers(values):
    lists = st.tuples(st.lists(values, max_size=3), comments).map(
        lambda parts: "[" + "".join(f"\n {item}, {parts[1]}\n" for item in parts[0]) + "]"
    )
    tables = st.lists(values, max_size=2).map(
        lambda items: "{ " + ", ".join(f"k{n} = {item}" for n, item in enumerate(items)) + " }"
    )
    return lists | tables


values = st.recursive(scalars, containers, max_leaves=5)
names = st.sampled_from(["b", "low", "1", "-", "a b", "[x]", "x=y", "#", "é", "'"])
paths = st.lists(names, min_size=1, max_size=3).map(tuple)
statements = st.tuples(
    st.sampled_from(["key", "key", "key", "table", "comment", "blank"]), paths, values, comments
)


def written(path):
    """Return a key as TOML, with quotes where it needs them."""
    bare = "abcdefghijklmnopqrstuvwxyz0123456789-_"
    return " . ".join(part if set(part) <= set(bare) else quoted(part) for part in path)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(statements, max_size=8))
def test_every_statement_of_a_document_is_found_on_its_line(document):
    lines, expected, table = [], {}, ()
    for number, (kind, path, value, comment) in enumerate(document):
        path = (f"n{number}", *path)  # no two statements define the same
        here = sum(line.count("\n") + 1 for line in lines) + 1
        if kind == "key":
            lines.append(f" {written(path)} = {value}{comment}")
            expected[(*table, *path)] = here
        elif kind == "table":
            lines.append(f"[ {written(path)} ]  {comment}")
            table = path
            expected[table] = here
        else:
            lines.append(comment if kind == "comment" else "")
    text = "\n".join(lines)
    tree = tomllib.loads(text)
    found = key_lines(text)
    assert {key: found[key] for key in expected} == expected
    for key in found:  # also the tables that a dotted key implies
        node = tree
        for part in key:
            node = node[part]


def test_a_table_stands_at_its_own_header_not_at_the_first_below_it():
    assert key_lines("[a.b]\nx = 1\n\n[a]\ny = 2") == {
        ("a", "b"): 1,
        ("a", "b", "x"): 2,
        ("a",): 4,
        ("a", "y"): 5,
    }


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_counted_with_every_line_end(end):
    assert key_lines(end.join(["a = 1", "", "b = 2"])) == {("a",): 1, ("b",): 3}


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("x.toml", "a = 1\ndataset = digits", "2: 'dataset = digits': invalid value; write "
            'dataset = "digits" (text needs quotes)'),
        ("x.toml", "a = [one, 2, ../three]  # x", 'write a = ["one", 2, "../three"]  # x (text'),
        ("x.toml", "a = two words", 'write a = "two words" (text needs quotes)'),
        ("x.toml", "a = nano", 'write a = "nano" (text needs quotes)'),
        ("x.toml", "compile = True", "invalid value; write compile = true"),
        ("x.toml", "a = 3 4", "1: 'a = 3 4': expected newline or end of document after a state"),
        ("x.toml", "name: x", "1: 'name: x': a study is TOML, not YAML: write name = \"x\""),
        ("x.toml", "search:\n  trials: 3", "a study is TOML, not YAML: write [search]"),
        ("x.yaml", "# a\n---\nseeds: 3 # three", "2: a study is TOML, not YAML: write seeds"),
        ("x.yml", "- a", "1: a study is TOML, not YAML"),
    ],
)  # fmt: skip
def test_a_syntax_error_shows_how_to_write_it(file, text, error):
    with pytest.raises(ConfigError) as refused:
        parse(text, Path(file), {"a", "dataset", "compile", "name", "search", "seeds"})
    line = str(refused.value)
    assert line.startswith(f"{file}:") and error in line and line.isprintable()


SECRETS = [
    "root:$6$hunter2$abc:19000:0:99999:7:::",
    "hunter2",
    "password = hunter2",
    "password: hunter2",
    "seeds = 3\npassword: hunter2",
    '-----BEGIN KEY-----\nhunter2=="hunter2\n',
    "[hunter2",
    "token = 'hunter2",
    'a = """\nhunter2 \\q',
    "{'seeds': 'hunter2'}",
]


@pytest.mark.parametrize("text", SECRETS)
@pytest.mark.parametrize("file", ["shadow", "x.toml", "x.yaml"])
def test_a_file_of_secrets_is_not_shown(file, text):
    with pytest.raises(ConfigError) as refused:
        parse(text, Path(file), {"a", "seeds"})
    line = str(refused.value)
    assert line.startswith(f"{file}:") and "hunter2" not in line
    assert "is it a study file?" in line or "a study is TOML" in line or text.startswith("a =")
