import inspect
import pickle

import pytest

from rayinfer import errors

CLASSES = [error for _, error in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_survives_a_pickle_round_trip(error):
    arguments = ("what happened", "prompt", "a_code") if issubclass(error, errors.RequestError) else ("what happened",)
    original = error(*arguments)
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is error
    assert str(copy) == str(original) == "what happened"
    assert vars(copy) == vars(original)


def test_a_request_error_names_the_field_and_the_clients_word():
    error = errors.PromptTooLong("too long", "prompt", "context_length_exceeded")
    assert (error.message, error.param, error.code) == ("too long", "prompt", "context_length_exceeded")
    assert isinstance(error, ValueError)


def test_what_is_unavailable_says_when_to_come_again():
    assert errors.QueueFull("full", 2.5).retry_after_s == 2.5
    assert pickle.loads(pickle.dumps(errors.QueueFull("full", 2.5))).retry_after_s == 2.5
    assert errors.EngineDead("gone").retry_after_s == 1.0


def test_every_error_is_ours_and_models_errors_are_one_family():
    assert all(issubclass(error, errors.RayinferError) for error in CLASSES)
    assert issubclass(errors.UnsupportedArchitecture, errors.ModelLoadError)
    assert issubclass(errors.ModelNotFound, errors.ModelLoadError)


def test_a_wrong_value_is_shown_however_large_it_is():
    assert errors.shown("two") == "'two'"
    assert errors.shown(10**5000) == "an integer of 16610 bits"
    assert len(errors.shown(["x"] * 1000)) == 80
