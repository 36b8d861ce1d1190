"""The settings of a command with their comments, as `--help` and a TAB read them from the YAML."""

import pytest

from posenc.config.yaml_files import Setting, chosen_settings, config_dir_of, default_choices, settings_in


@pytest.fixture
def yaml_file(tmp_path):
    """Write a YAML file; return its path."""

    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write


def by_key(settings):
    return {setting.key: setting for setting in settings}


def test_a_value_is_shown_as_it_is_written(yaml_file):
    path = yaml_file("tokens: 4e6\nflag: off\nlengths: [0.5x, 1x]\n")
    assert [setting.value for setting in settings_in(path)] == ["4e6", "off", "[0.5x, 1x]"]


def test_a_comment_stands_beside_its_value(yaml_file):
    path = yaml_file("# of the file\nname: mine  # not a setting of a group\nbase: 1.0  # of the angles\n")
    assert settings_in(path, "encoding.") == [Setting("encoding.base", "1.0", "of the angles")]


def test_a_comment_goes_on_over_the_lines_below_it(yaml_file):
    path = yaml_file("base: 1.0  # of the\n           # angles\n\n# another\nwidth: 2\n")
    assert by_key(settings_in(path))["base"].comment == "of the angles"


def test_a_hash_in_a_text_begins_no_comment(yaml_file):
    (setting,) = settings_in(yaml_file('separator: "a # b"  # between documents\n'))
    assert setting == Setting("separator", '"a # b"', "between documents")


def test_a_group_is_its_settings(yaml_file):
    path = yaml_file("train:  # of all\n  lr: 1e-3\n  deeper:\n    step: 2\n")
    assert [setting.key for setting in settings_in(path)] == ["train.lr", "train.deeper.step"]


def test_a_list_over_several_lines_has_its_comment_and_no_value(yaml_file):
    path = yaml_file("exclude:  # patterns\n  - a\n  - b\n")
    assert settings_in(path) == [Setting("exclude", "", "patterns")]


def test_hydras_part_is_left_out(yaml_file):
    path = yaml_file("defaults:\n  - encoding: rope\nseed: 0\nhydra:\n  run:\n    dir: .\n")
    assert [setting.key for setting in settings_in(path)] == ["seed"]


def test_groups_come_with_their_default_choices():
    assert default_choices("train")["encoding"] == "rope"


def test_a_group_may_have_no_choice():
    assert default_choices("train")["experiment"] is None


def test_the_settings_are_those_of_the_chosen_groups():
    keys = by_key(chosen_settings("train", ["encoding=alibi"]))
    assert "encoding.learned_slopes" in keys
    assert "encoding.base" not in keys


def test_what_is_null_in_eval_has_the_comment_of_the_default():
    assert by_key(chosen_settings("eval"))["eval.lengths"].comment.startswith("multiples of base_length")


@pytest.mark.parametrize("arguments", [["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]])
def test_the_users_folder_is_found_among_the_arguments(arguments):
    assert config_dir_of(["encoding=rope", *arguments]) == "mine"


def test_without_a_folder_there_is_none():
    assert config_dir_of(["encoding=rope"]) is None
