"""Exercise 3: where is the peak, and who forms it?"""

import unittest

from checking import peakledger, some_ledgers, the
from ledger import step


class Peak(unittest.TestCase):
    def test_the_peak_of_a_step(self):
        peak = the("ex3_peak").find_peak(step())
        self.assertEqual((peak["phase"], peak["total_mb"]), ("backward", 2200))

    def test_the_largest_contributor_is_first(self):
        contributors = ["parameters", "optimizer_state", "gradients", "activations", "collective_buffer"]
        self.assertEqual(the("ex3_peak").find_peak(step())["contributors"], contributors)

    def test_of_one_size_the_order_is_that_of_the_names(self):
        states = [{**step()[0], "name": name} for name in ["b", "c", "a"]]
        self.assertEqual(the("ex3_peak").find_peak(states)["contributors"], ["a", "b", "c"])

    def test_a_tie_goes_to_the_earliest_phase(self):
        self.assertEqual(the("ex3_peak").find_peak(step()[:1])["phase"], "load")
        self.assertEqual(the("ex3_peak").find_peak(step()[2:3])["phase"], "forward")

    def test_nothing_has_its_peak_in_the_first_phase(self):
        self.assertEqual(the("ex3_peak").find_peak([]), {"phase": "load", "total_mb": 0, "contributors": []})

    def test_peakledger_finds_the_same(self):
        for states in some_ledgers(40):
            told = peakledger("show", "ledger.json", ledger=states)["peak"]
            contributors = [contributor["name"] for contributor in told["contributors"]]
            expected = {"phase": told["peak_phase"], "total_mb": told["peak_mb"], "contributors": contributors}
            self.assertEqual(the("ex3_peak").find_peak(states), expected, states)


if __name__ == "__main__":
    unittest.main()
