"""Which words of the command line are values of flags, and which are positional arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from absl import flags as absl_flags

from tfdist.config.flags import parse_flags, parse_only_flags, with_underscores

pytestmark = pytest.mark.stacks("2.15", "newest")


@pytest.fixture
def booleans(monkeypatch: pytest.MonkeyPatch) -> absl_flags.FlagValues:
    """The flags of a script: a boolean flag, and a required string with an alias."""
    values = absl_flags.FlagValues()
    absl_flags.DEFINE_bool("use_distortion", True, "A boolean.", flag_values=values)
    absl_flags.DEFINE_string("output_dir", None, "A string.", required=True, flag_values=values)
    absl_flags.DEFINE_alias("job_dir", "output_dir", flag_values=values)
    monkeypatch.setattr(absl_flags, "FLAGS", values)
    return values


PARSERS = pytest.mark.parametrize("parse", [parse_flags, parse_only_flags])
Parser = Callable[[list[str]], list[str]]


@PARSERS
@pytest.mark.parametrize("name", ["--use-distortion", "--use_distortion", "-use_distortion"])
@pytest.mark.parametrize(
    ("word", "value"),
    [("False", "False"), ("f", "False"), ("0", "False"), ("no", "False"), ("TRUE", "True")],
)
def test_a_value_after_a_boolean_flag_is_rejected(
    booleans: absl_flags.FlagValues,
    capsys: pytest.CaptureFixture[str],
    parse: Parser,
    name: str,
    word: str,
    value: str,
) -> None:
    typed = with_underscores(["--job-dir", "x", name, word, "--job-dir=y"])

    with pytest.raises(SystemExit) as end:
        parse(["script", *typed])

    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"tfdist: error: --use_distortion: received '{name.replace('e-d', 'e_d')} {word}'; accepted"
    )
    assert line.endswith(f". Write --use_distortion={value}.")


@PARSERS
@pytest.mark.parametrize(
    ("typed", "distorts"),
    [
        (["--use-distortion=False", "--job-dir=x"], False),
        (["--use_distortion=0", "--job_dir", "x"], False),
        (["--nouse-distortion", "--job-dir=x"], False),
        (["--use-distortion", "--output_dir", "x"], True),
        (["--use_distortion", "--output_dir", "x", "--use_distortion"], True),
    ],
)
def test_accepted_forms_of_boolean_flags(
    booleans: absl_flags.FlagValues, parse: Parser, typed: list[str], distorts: bool
) -> None:
    assert parse(["script", *with_underscores(typed)]) == ["script"]
    assert booleans.use_distortion is distorts
    assert booleans.output_dir == "x"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["data", "--use_distortion"], ["data"]),
        (["--use_distortion", "data", "False"], ["data", "False"]),
        (["use_distortion", "0"], ["use_distortion", "0"]),
        (["--use_distortion", "--", "False"], ["False"]),
        (["--", "--use_distortion", "False"], ["--use_distortion", "False"]),
    ],
)
def test_positional_arguments_need_a_parser_that_accepts_them(
    booleans: absl_flags.FlagValues,
    capsys: pytest.CaptureFixture[str],
    typed: list[str],
    words: list[str],
) -> None:
    typed = ["script", "--job_dir=x", *typed]
    assert parse_flags(typed) == ["script", *words]

    with pytest.raises(SystemExit) as end:
        parse_only_flags(typed)

    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"tfdist: error: command line: received '{words[0]}'; accepted: only flags. Leave it "
        "out, or write it as the value of a flag: --flag=value.\n"
    )
