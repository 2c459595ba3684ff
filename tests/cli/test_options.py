"""Options before and after the command's name, and from the environment."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from claimjobs.cli import exits
from claimjobs.cli.main import COMMANDS, main
from tests.backends import Backend
from tests.cli.command import Ended, claimjobs


def table_of(*words: str, env: dict[str, str]) -> str:
    """The table that a status is about."""
    ended = claimjobs(*words, "--json", env=env)
    assert (ended.code, ended.err) == (exits.OK, "")
    return str(json.loads(ended.out)["table"])


@pytest.fixture
def three(anywhere: Backend) -> Backend:
    for name in ("one", "two", "three"):
        anywhere.make(name)
    return anywhere


def test_what_is_given_later_counts_and_both_before_the_environment(three: Backend) -> None:
    url = {"CLAIMJOBS_URL": three.url}
    assert table_of("status", env={**url, "CLAIMJOBS_TABLE": "three"}) == "three"
    assert table_of("--table", "two", "status", env={**url, "CLAIMJOBS_TABLE": "three"}) == "two"
    assert table_of("--table", "two", "status", "--table", "one", env={**url, "CLAIMJOBS_TABLE": "three"}) == "one"
    assert table_of("--url", three.url, "status", "--table", "one", env={"CLAIMJOBS_URL": "mysql://nowhere/x"}) == "one"


def test_the_command_that_a_message_names_is_for_the_same_queue(three: Backend) -> None:
    three.make("two words")
    env = {"CLAIMJOBS_URL": three.url}
    for words in (("--table", "two words", "pause"), ("status", "--table", "two words", "--claims", "batches")):
        [step] = re.findall("`claimjobs (resume .*)`", claimjobs(*words, env=env).out)
        assert shlex.split(step) == ["resume", "--table", "two words", *words[3:]]
    assert claimjobs(*shlex.split(step), env=env).out == "two words is not paused any more\n"


def test_a_map_before_the_command(three: Backend, tmp_path: Path) -> None:
    file = tmp_path / "map.toml"
    file.write_text('table = "two"\n')
    assert table_of("--map", str(file), "status", env={"CLAIMJOBS_URL": three.url}) == "two"
    assert table_of("status", env={"CLAIMJOBS_URL": three.url, "CLAIMJOBS_MAP": str(file)}) == "two"


def test_before_a_command_of_a_group(three: Backend) -> None:
    for words in (("--url", three.url, "dead", "--table", "one"), ("--table", "one", "dead", "--url", three.url)):
        assert claimjobs(*words, "retry", "--all") == Ended(exits.OK, "0\n", "")


def test_setup_tables_takes_a_url_before_its_name(anywhere: Backend) -> None:
    ended = claimjobs("--url", anywhere.url, "setup-tables")
    assert (ended.code, "jobs: made" in ended.out) == (exits.OK, True)


def test_options_that_are_a_commands_own_have_its_name_in_their_variable(three: Backend) -> None:
    env = {"CLAIMJOBS_URL": three.url, "CLAIMJOBS_TABLE": "one", "CLAIMJOBS_STATUS_JSON": "1"}
    assert json.loads(claimjobs("status", env=env).out)["table"] == "one"
    env = {"CLAIMJOBS_URL": three.url, "CLAIMJOBS_TABLE": "one", "CLAIMJOBS_LIST_LIMIT": "zero"}
    ended = claimjobs("list", env=env)
    assert (ended.code, "'--limit'" in ended.err) == (exits.USAGE, True)


@pytest.mark.parametrize("value", ["0", "false"])
def test_a_flag_that_its_variable_switches_off_is_not_given(three: Backend, value: str) -> None:
    env = {"CLAIMJOBS_URL": three.url, "CLAIMJOBS_TABLE": "one", "CLAIMJOBS_SIDE_CAR": value}
    ended = claimjobs("pause", env=env)
    assert ended == Ended(exits.OK, "one is paused: `claimjobs resume --table one` ends that\n", "")
    flags = {f"CLAIMJOBS_EXPLAIN_{name}": value for name in ("PER_KEY_IN_ORDER", "ANY_ORDER")}
    ended = claimjobs("explain", "--order-by", "id", env={**env, **flags})
    assert (ended.code in (exits.OK, exits.WARNINGS), ended.err) == (True, "")


def test_one_that_can_be_repeated_takes_several(three: Backend) -> None:
    env = {"CLAIMJOBS_URL": three.url, "CLAIMJOBS_TABLE": "one", "CLAIMJOBS_EXPLAIN_ORDER_BY": "id nothing"}
    ended = claimjobs("explain", env=env)
    assert (ended.code, "nothing" in ended.out) == (exits.WILL_NOT_WORK, True)


def options() -> list[tuple[str, click.Option]]:
    """Every option of every command."""
    context = click.Context(main)
    commands: dict[str, click.Command] = {"": main}
    commands |= {name: found for name in COMMANDS if (found := main.get_command(context, name))}
    for name, group in list(commands.items()):
        if isinstance(group, click.Group) and group is not main:
            commands |= {f"{name} {below}": command for below, command in group.commands.items()}
    return [
        (name, option)
        for name, command in commands.items()
        for option in command.params
        if isinstance(option, click.Option) and option.name != "version"
    ]


@pytest.mark.parametrize(("command", "option"), options())
def test_every_option_has_a_variable_that_the_help_shows(command: str, option: click.Option) -> None:
    long = max(option.opts, key=len).removeprefix("--").replace("-", "_").upper()
    path = command.replace("-", "_").replace(" ", "_").upper()
    assert option.envvar in (f"CLAIMJOBS_{long}", f"CLAIMJOBS_{path}_{long}")
    assert f"env var: {option.envvar}" in " ".join(claimjobs(*command.split(), "--help").out.split())
