from rayinfer_deployments.cluster.managed_cluster import make_private_folder


def test_only_its_user_enters_the_folder_of_a_ray_which_lies_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    folder = make_private_folder()
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert make_private_folder() != folder
