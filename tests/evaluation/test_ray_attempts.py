"""How often a part was started."""

from lrpx.evaluation.ray_attempts import Starts


def test_each_part_is_counted_by_itself():
    starts = Starts()
    assert [starts.add(n) for n in (3, 0, 3, 3)] == [1, 1, 2, 3]
