"""The README is checked like code."""

import re
from pathlib import Path

from ressmooth.cli import main

COMMANDS = {name: main.get_command(None, name) for name in main.list_commands(None)}
README = (Path(__file__).parent.parent / "README.md").read_text()


def test_every_command_has_help_and_appears_in_the_readme():
    for name, command in COMMANDS.items():
        assert command.help
        assert f"ressmooth {name}" in README


def test_readme_links_lead_somewhere():
    root = Path(__file__).parent.parent
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert targets
    assert [target for target in targets if not (root / target).exists()] == []


def test_readme_options_exist():
    options = {"--help"} | {
        o for command in COMMANDS.values() for p in command.params for o in p.opts
    }
    for line in re.findall(r"ressmooth (?:train|bench)[^\n`]*", README):
        assert set(re.findall(r"(?<!\S)--[a-z-]+", line)) <= options, line
