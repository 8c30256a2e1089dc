"""Standard output and error that break: the process becomes quiet, nothing else."""

import os
import subprocess
import sys

import pytest
from helpers.launch import RESULTS, command, query
from helpers.serving import ServedHome

SPEAK = """
import os, sys, warnings
from ressmooth.engines.output import survive_broken_output
survive_broken_output()
print("first")
for stream in (sys.stdout, sys.stderr):
    for number in range(3):
        print("x" * 10_000, file=stream, flush=True)
warnings.warn("not seen")
os.write(2, b"")  # the descriptors are still there
sys.exit(5)
"""


def run(script, **streams):
    return subprocess.run([sys.executable, "-c", script], **streams)


def test_a_reader_that_leaves():
    reader, writer = os.pipe()
    os.close(reader)
    assert run(SPEAK, stdout=writer, stderr=writer).returncode == 5


def test_a_log_file_on_a_full_disk():
    with open("/dev/full", "w") as full:
        assert run(SPEAK, stdout=full, stderr=full).returncode == 5


def test_what_can_be_written_is_written():
    done = run(SPEAK, capture_output=True, text=True)
    assert done.returncode == 5
    assert done.stdout.split() == ["first", *["x" * 10_000] * 3]
    assert done.stderr.startswith("x" * 10_000) and "UserWarning: not seen" in done.stderr


def test_closed_descriptors_are_not_given_to_the_next_file():
    """What a library prints would be written into it."""
    script = """
import os
from ressmooth.engines.output import survive_broken_output
survive_broken_output()
file = open("/dev/null")
assert file.fileno() > 2, file.fileno()
print("nowhere", flush=True)
os.write(1, b"nowhere")
os.write(2, b"nowhere")
os._exit(5)
"""
    shell = ["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, script]
    assert subprocess.run(shell).returncode == 5


@pytest.mark.slow
def test_a_study_trains_on_when_nobody_reads_it(engine, study, tmp_path, undisturbed):
    """As with `2>&1 | head -n 1`, on both engines."""
    reader, writer = os.pipe()
    launcher = subprocess.Popen(
        command(study, tmp_path, *engine.options, "--workers", "2"),
        env=engine.environment,
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.readline().startswith("starting ")
    assert launcher.wait(timeout=300) == 0
    assert query(tmp_path, RESULTS) == query(undisturbed[0], RESULTS)
    assert query(tmp_path, "SELECT DISTINCT state FROM study") == [("ended",)]


@pytest.mark.slow
def test_a_service_serves_on_when_nobody_reads_it(study, tmp_path, undisturbed):
    home = ServedHome(tmp_path / "home")
    reader, writer = os.pipe()
    service = subprocess.Popen(
        [sys.executable, "-m", "ressmooth.cli", "serve", "--home", str(home.directory)],
        env={**os.environ, **home.environment},
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    os.close(reader)
    try:
        home.study(study, "--detach")
        home.wait_until("tiny", "ended", service)
        assert query(home.directory, RESULTS) == query(undisturbed[0], RESULTS)
    finally:
        service.terminate()
        assert service.wait(60) == 143
        home.close()
