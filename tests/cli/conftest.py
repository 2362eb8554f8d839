"""Commands run in the process of the test."""

import json
import sys

import pytest

from leadline import cli


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command: exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["leadline", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return call


@pytest.fixture
def records(run):
    """Run a command, given as words or as one line, with --json: its records."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    def call(*arguments):
        words = arguments[0].split() if len(arguments) == 1 else arguments
        code, out, err = run(*words, "--json")
        assert (code, err) == (0, "")
        return [json.loads(line, parse_constant=refuse) for line in out.splitlines()]

    return call


@pytest.fixture
def refused(run):
    """Run a command that must fail in one line; what it says."""

    def call(*arguments):
        code, out, err = run(*arguments)
        assert code == 2
        assert out == ""
        assert err.startswith("error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return err.removeprefix("error: ").removesuffix("\n")

    return call
