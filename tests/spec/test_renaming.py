import tomllib

import pytest

from ressmooth.spec import with_name

REST = "[arms.name]\nb = 0.5\n"


@pytest.mark.parametrize(
    "text, renamed",
    [
        (f'# mine\nname = "a" # here\n{REST}', f'# mine\nname = "b" # here\n{REST}'),
        (f"name='a'\n{REST}", f'name = "b"\n{REST}'),
        (f'"name" = "a"\n{REST}', None),
        (f'description = """\nname = "x"\n"""\nname = "a"\n{REST}', None),
    ],
)
def test_a_text_is_renamed_and_keeps_all_else(text, renamed):
    changed = with_name(text, "b")
    assert tomllib.loads(changed) == {**tomllib.loads(text), "name": "b"}
    assert renamed is None or changed == renamed
