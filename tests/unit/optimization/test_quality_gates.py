import pytest

from rayinfer.errors import ConfigError
from rayinfer.optimization.quality_gates import MEASURED, QUALITY_LIMITS, check_quality


def test_a_mode_that_loses_too_much_is_refused_with_what_was_measured_and_how_to_allow_it():
    with pytest.raises(ConfigError, match=r"int4 .* 7\.3 % .* 5 % .* allow_inaccurate_quantization"):
        check_quality("int4", is_inaccuracy_allowed=False, measured={"int4": 7.34})
    check_quality("int4", is_inaccuracy_allowed=True, measured={"int4": 7.34})
    check_quality("int4", is_inaccuracy_allowed=False, measured={"int4": 4.9})


def test_every_mode_that_has_a_limit_was_measured():
    assert MEASURED.keys() == QUALITY_LIMITS.keys()


def test_a_mode_that_was_not_measured_is_refused_with_how_to_allow_and_measure_it():
    with pytest.raises(ConfigError, match=r"int8 .* has not been measured .* allow_inaccurate_quantization"):
        check_quality("int8", is_inaccuracy_allowed=False, measured={})
    check_quality("int8", is_inaccuracy_allowed=True, measured={})


def test_weights_of_fp8_lose_more_than_is_allowed_and_its_cache_does_not():
    with pytest.raises(ConfigError, match=r"fp8 .* 3\.5 % .*SmolLM2-135M.* 3 % .* allow_inaccurate_quantization"):
        check_quality("fp8", is_inaccuracy_allowed=False)
    check_quality("fp8-kv", is_inaccuracy_allowed=False)


@pytest.mark.parametrize("mode", [mode for mode in MEASURED if mode != "fp8"])
def test_every_other_mode_on_offer_passes(mode):
    check_quality(mode, is_inaccuracy_allowed=False)
