"""Read TOML into plain tables, with the line of each key. Knows TOML, not studies."""

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from ressmooth.errors import ConfigError

MAX_DEPTH = 20  # levels of nested tables and lists
TOO_DEEP = f"nested too deeply: at most {MAX_DEPTH} levels"
# tomllib takes quadratic time over a key of many dotted parts.
DOTTED = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+)" f"{{{MAX_DEPTH}}}")
# What decides where a statement of valid TOML ends: strings, comments, brackets and line ends.
TOKEN = re.compile(
    r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*+"{3,5}|"(?:[^"\\]|\\.)*+"'
    r"|'''(?:[^']++|'{1,2}(?!'))*+'{3,5}|'[^']*+'|#[^\n]*+|[][{}\n]",
    re.DOTALL,
)
PART = r"""(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
KEY = re.compile(rf"\s*\[*[ \t]*({PART}(?:[ \t]*\.[ \t]*{PART})*)")
# A value without its quotes, and a line of YAML.
BARE = re.compile(r"([=\[,]\s*)([A-Za-z_./][\w./ -]*?)(?=\s*(?:[,\]}#]|$))")
YAML = re.compile(r"([\w-]+):(?:[ \t]+([^#]*?))?[ \t]*(?:#.*)?")
MAX_HINT = 200  # characters of a line that is shown corrected

Tree = dict[str, Any]  # the tables of a study file
Key = tuple[str | int, ...]  # a position in a tree: table names and list indices
Sources = dict[Key, str]  # the origin of a key and of all below it: "file:line", or "--set"


def parse(text: str, path: Path, known: Collection[str]) -> tuple[Tree, Sources]:
    """Return the tables of a study file and where they stand, or raise a ConfigError.

    Only lines that begin with a `known` key are shown: another file may have been given by mistake,
    with secrets in it.
    """
    file = escape(str(path))
    if deep := DOTTED.search(text):
        line = text.count("\n", 0, deep.start()) + 1
        raise ConfigError(f"{file}:{line}: {TOO_DEEP}")
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{file}: {TOO_DEEP}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_error(str(error), text, path, known)) from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise ConfigError(f"{file}: {str(error).partition(';')[0]}") from None
    return tree, {(): file} | {key: f"{file}:{line}" for key, line in key_lines(text).items()}


def key_lines(text: str) -> dict[Key, int]:
    """Return the lines of the tables and keys of valid TOML; tomllib does not tell them.

    Keys in an inline table stand where their statement begins, as do the elements of a list.
    """
    lines: dict[Key, int] = {}
    table: Key = ()
    for line, statement in _statements(text):
        if (found := KEY.match(statement)) is None:  # blank, or a comment
            continue
        is_header = statement.lstrip().startswith("[")
        key = (*(() if is_header else table), *(parse_key(found[1]) or ()))
        table = key if is_header else table
        for length in range(1, len(key)):
            lines.setdefault(key[:length], line)
        lines[key] = line
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the statements of valid TOML, each with the line on which it begins."""
    line, start, depth = 1, 0, 0
    for token in TOKEN.finditer(f"{text}\n"):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        elif token[0] == "\n" and depth == 0:
            yield line, text[start : token.start()]
            line += text.count("\n", start, token.end())
            start = token.end()


def _syntax_error(message: str, text: str, path: Path, known: Collection[str]) -> str:
    """Return tomllib's message with file and line, and the corrected line where it is known."""
    file = escape(str(path))
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message)
    if found is None:
        return f"{file}: {escape(message)}"
    number = int(found[2] or len(text.rstrip().split("\n")))
    lines = [line if _begins_with(line, known) else "" for line in text.split("\n")]
    line = lines[number - 1].strip()
    problem = escape(found[1][0].lower() + found[1][1:])
    if problem.startswith("cannot"):  # overwrite a value, declare a table twice, ...
        problem += " (is this key given twice?)"
    elif path.suffix in (".yaml", ".yml") or (line and YAML.fullmatch(line[:MAX_HINT])):
        problem = f"a study is TOML, not YAML{_from_yaml([line, *lines])}"
    elif fixed := _with_quotes(line):
        quotes = " (text needs quotes)" if fixed.count('"') > line.count('"') else ""
        problem += f"; write {fixed}{quotes}"
    if not line:
        return f"{file}:{number}: {problem}; is it a study file?"
    return f"{file}:{number}: {shorten(line)}: {problem}"


def _begins_with(line: str, known: Collection[str]) -> bool:
    """Tell whether a line of TOML or YAML begins with one of the keys."""
    found = KEY.match(line[:MAX_HINT])
    key = parse_key(found[1]) if found else None
    return key is not None and key[0] in known


def _from_yaml(lines: list[str]) -> str:
    """Return the first of some lines that is YAML as TOML, for a message."""
    for line in lines:
        if len(line) <= MAX_HINT and (found := YAML.fullmatch(line)):
            value = parse_value(found[2]) if found[2] else {}
            return f": write {escape(' '.join(tomli_w.dumps({found[1]: value}).split()))}"
    return ""


def _with_quotes(line: str) -> str | None:
    """Return a line with quotes around its words, or None if that does not make it TOML."""
    if len(line) > MAX_HINT or not line.isprintable():
        return None

    def quote(found: re.Match[str]) -> str:
        sign, word = found.groups()
        return sign + (word.lower() if word in ("True", "False") else f'"{word}"')

    fixed = BARE.sub(quote, line)
    try:
        tomllib.loads(fixed)
    except (ValueError, RecursionError):
        return None
    return fixed


def source_of(key: Key, sources: Sources) -> str:
    """Return where a key stands, or else the table that it belongs to."""
    prefixes = (key[:length] for length in range(len(key), -1, -1))
    return next(sources[prefix] for prefix in prefixes if prefix in sources)


def parse_key(name: str) -> tuple[str, ...] | None:
    if DOTTED.search(name):
        return None
    try:
        node: Any = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        return None
    path = []
    while isinstance(node, dict) and len(node) == 1:
        [(part, node)] = node.items()
        path.append(part)
    return tuple(path) if node == 0 else None


def parse_value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if list(found) == ["value"] else text


def walk(tree: Any) -> Iterator[tuple[Key, Any]]:
    """Yield every key of a tree with its value, in the order of the file."""
    stack: list[tuple[Key, Any]] = [((), tree)]
    while stack:
        key, value = stack.pop()
        yield key, value
        items: Iterable[tuple[str | int, Any]] = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, list):
            items = enumerate(value)
        stack.extend(reversed([((*key, name), item) for name, item in items]))


def escape(text: str) -> str:
    return text if text.isprintable() else repr(text)


def shorten(value: Any) -> str:
    """Return the value's repr in at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        text = hex(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def dotted(key: Key) -> str:
    """Return a key as TOML writes it, with list indices in brackets."""
    parts = ""
    for part in key:
        if isinstance(part, int):
            parts += f"[{part}]"
        else:
            parts += "." + (part if re.fullmatch(r"[\w-]{1,64}", part) else shorten(part))
    return parts.removeprefix(".")
