from rayinfer_deployments.service_answers import have_weights


def test_engines_have_other_weights_once_each_replica_of_them_says_so():
    assert have_weights({"a", "b"}, [("a", 2), ("b", 2), ("c", 1)], 2)
    assert not have_weights({"a", "b"}, [("a", 2), ("b", 1)], 2)  # one that was added with the old ones
    assert not have_weights({"a", "b"}, [("a", 2)], 2)  # one that says nothing
    assert not have_weights(set(), [("a", 2)], 2)
