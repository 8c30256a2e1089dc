"""Finding and reading study files."""

import os
import socket
import time

import pytest

from ressmooth import spec
from ressmooth.errors import ConfigError
from ressmooth.spec.files import MAX_BYTES, bundled, find, read


def refused(path):
    started = time.perf_counter()
    with pytest.raises(ConfigError) as error:
        spec.load(str(path))
    assert time.perf_counter() - started < 2
    (line,) = str(error.value).splitlines()
    assert line.isprintable()
    return line.removeprefix(f"{path}:").strip()


def write(tmp_path, content):
    path = tmp_path / "x.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_bundled_studies_are_found_by_name(tmp_path, monkeypatch):
    assert {"quickstart", "search-fashion"} <= set(bundled())
    assert find("quickstart").name == "quickstart.toml"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()  # perhaps a home directory: a directory is no study
    assert find("quickstart").name == "quickstart.toml"
    (tmp_path / "search-fashion").write_text("")  # a file has precedence
    assert str(find("search-fashion")) == "search-fashion"


@pytest.mark.parametrize("name", ["quickstrat", "", "no/such.toml", "a\0b", "x" * 5000, "\udc80"])
def test_an_unknown_study_is_an_error_that_lists_the_bundled_ones(name):
    line = refused(name)
    assert "neither a file nor a bundled study" in line
    assert line.endswith(f"bundled: {', '.join(bundled())}")
    assert ("did you mean 'quickstart'?" in line) == (name == "quickstrat")


def test_only_regular_files_are_read(tmp_path):
    assert refused(tmp_path) == "a directory, not a study file"
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == "not a regular file"
    assert refused("/dev/zero") == "not a regular file"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refused(tmp_path / "loop") == "Too many levels of symbolic links"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket"))
        assert refused(tmp_path / "socket") == "No such device or address"


def test_a_file_name_cannot_break_the_line(tmp_path):
    path = tmp_path / "x\n\x1b[31m.toml"
    path.write_text("")
    with pytest.raises(ConfigError) as error:
        spec.load(str(path))
    assert all(r"x\n\x1b[31m.toml" in line for line in str(error.value).splitlines())


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"#" * (MAX_BYTES + 1), "larger than 1 MB"),
        (b"\xef\xbb\xbfname = 's'", "begins with a byte order mark: save it without"),
        (b"name = 's'\n# \xff", "2: not UTF-8"),
        ("name = 's'".encode("utf-16"), "1: not UTF-8"),
        (b"name = 's'\n# \0", r"2: found invalid character '\x00'; is it a study file?"),
        ("a = 1\nname: s", "2: 'name: s': a study is TOML, not YAML: write name = \"s\""),
        ("a = [1,\n2", "2: unclosed array; is it a study file?"),
        ("lr = 1\n\nlr = 2", "3: 'lr = 2': cannot overwrite a value (is this key given twice?)"),
        ("[arms]\n[arms]", "2: '[arms]': cannot declare ('arms',) twice (is this key given"),
        ("a = " + "[" * 5000, "nested too deeply: at most 20 levels"),
        ("a = " + "{a=" * 5000, "nested too deeply: at most 20 levels"),
        ("a = " + "[" * 25 + "]" * 25, "1: a[0]: nested too deeply: at most 20 levels"),
        ("[" + ".".join("a" * 25) + "]", "1: nested too deeply: at most 20 levels"),
        ("\n" + ".".join("a" * 300_000) + " = 1", "2: nested too deeply: at most 20 levels"),
        ("a = " + "9" * 5000, "Exceeds the limit (4300 digits) for integer string conversion"),
        ("a = {b = 1}\n" + "x" * 900_000, "2: expected '=' after a key"),
    ],
    ids=lambda value: ascii(value)[:25],
)
def test_a_file_that_is_not_toml_is_refused_at_once(tmp_path, content, error):
    assert refused(write(tmp_path, content)).startswith(error)


def test_a_file_of_one_megabyte_is_read(tmp_path):
    assert len(read(write(tmp_path, b"#" * MAX_BYTES))) == MAX_BYTES


def test_a_megabyte_of_unknown_keys_is_refused_soon(tmp_path):
    path = write(tmp_path, "".join(f"k{n} = 1\n" for n in range(80_000)))
    started = time.process_time()
    with pytest.raises(ConfigError) as error:
        spec.load(str(path))
    assert time.process_time() - started < 5
    assert str(error.value).endswith("more errors")
