"""Redis of the cache of predictions: its URL may have a password, which no command line should hold."""

import typer
from typer.testing import CliRunner

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.options.prediction_cache_options import with_prediction_cache_options

WRONG = "http://:secret@host"  # which is refused once it has been read


def run(*arguments, **environment):
    app = typer.Typer()

    @app.command()
    @with_prediction_cache_options
    def serve(application_settings: dict = {}) -> None:  # noqa: B006 - filled by the decorator
        pass

    return CliRunner().invoke(app, arguments, env=environment).exception


def test_the_url_comes_from_the_environment_or_a_file(tmp_path):
    file = tmp_path / "url"
    file.write_text(WRONG + "\n")
    for error in (
        run(RAYINFER_PREDICTION_CACHE_URL=WRONG),
        run(RAYINFER_PREDICTION_CACHE_URL=f"@{file}"),
        run("--prediction-cache-url", f"@{file}"),
    ):
        assert isinstance(error, ConfigError)
        assert "must be redis://HOST" in str(error)
        assert "secret" not in str(error)
    assert run() is None


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    error = run("--prediction-cache-url", f"@{tmp_path / 'none'}")
    assert isinstance(error, ConfigError)
    assert "none: the file cannot be read" in str(error)
