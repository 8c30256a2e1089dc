"""Give the text of a study another name."""

import re
import tomllib

import tomli_w

NAME_LINE = re.compile(r"""^name\s*=\s*("[^"\n]*"|'[^'\n]*')""", re.MULTILINE)


def with_name(text: str, name: str) -> str:
    """Return the text of a study file with another name. Keep its comments if possible."""
    renamed = {**tomllib.loads(text), "name": name}
    changed = NAME_LINE.sub(f'name = "{name}"', text, count=1)
    try:
        return changed if tomllib.loads(changed) == renamed else tomli_w.dumps(renamed)
    except tomllib.TOMLDecodeError:  # the line was part of a longer text
        return tomli_w.dumps(renamed)
