"""Exercise 4: what would other ledgers save?"""

import unittest

from checking import peakledger, some_ledgers, the
from ledger import State, step


def changed(name: str, **fields) -> list[State]:
    """The step with other fields of one state."""
    return [{**state, **fields} if state["name"] == name else state for state in step()]


class Compare(unittest.TestCase):
    def test_a_candidate_that_saves(self):
        candidates = {"checkpoint": changed("activations", end_phase="forward")}
        expected = {"checkpoint": {"phase": "forward", "total_mb": 1900, "saves_mb": 300}}
        self.assertEqual(the("ex4_compare").compare(step(), candidates), expected)

    def test_the_peak_may_stay_where_it_is(self):
        compared = the("ex4_compare").compare(step(), {"offload": changed("activations", device="cpu")})
        self.assertEqual(compared["offload"], {"phase": "backward", "total_mb": 1900, "saves_mb": 300})

    def test_what_is_not_at_the_peak_saves_nothing(self):
        compared = the("ex4_compare").compare(step(), {"no workspace": changed("forward_workspace", size_mb=0.0)})
        self.assertEqual(compared["no workspace"]["saves_mb"], 0)

    def test_a_candidate_may_need_more(self):
        compared = the("ex4_compare").compare(step(), {"larger": changed("gradients", size_mb=500.0)})
        self.assertEqual(compared["larger"]["saves_mb"], -100)

    def test_candidates_do_not_touch_each_other(self):
        one, two = changed("activations", device="cpu"), changed("gradients", size_mb=500.0)
        together = the("ex4_compare").compare(step(), {"one": one, "two": two})
        alone = {**the("ex4_compare").compare(step(), {"one": one}), **the("ex4_compare").compare(step(), {"two": two})}
        self.assertEqual(together, alone)
        self.assertEqual(list(together), ["one", "two"])

    def test_a_candidate_has_a_name(self):
        with self.assertRaises(ValueError):
            the("ex4_compare").compare(step(), {"": step()})

    def test_peakledger_saves_the_same(self):
        for baseline, candidate in zip(some_ledgers(20), some_ledgers(40)[20:], strict=True):
            told = peakledger("compare", "before.json", "after=after.json", before=baseline, after=candidate)
            told = told["candidates"]["after"]
            expected = {"phase": told["peak_phase"], "total_mb": told["peak_mb"], "saves_mb": told["memory_saving_mb"]}
            self.assertEqual(the("ex4_compare").compare(baseline, {"after": candidate})["after"], expected)


if __name__ == "__main__":
    unittest.main()
