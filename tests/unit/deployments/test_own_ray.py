from rayinfer_deployments.own_ray import delete_session


def make_sessions(folder):
    ours, other = folder / "session_2026_1", folder / "session_2026_2"
    for session in (ours, other):
        (session / "logs").mkdir(parents=True)
        (session / "logs" / "a.log").touch()
    return ours, other


def test_only_the_given_session_is_deleted(tmp_path):
    ours, other = make_sessions(tmp_path)
    latest = tmp_path / "session_latest"
    latest.symlink_to(other)
    delete_session(ours)
    assert not ours.exists()
    assert (other / "logs" / "a.log").exists()
    assert latest.resolve() == other
    delete_session(ours)  # it is gone already


def test_the_link_to_a_deleted_session_goes_with_it(tmp_path):
    ours, _ = make_sessions(tmp_path)
    latest = tmp_path / "session_latest"
    latest.symlink_to(ours)
    delete_session(ours)
    assert not latest.is_symlink()
