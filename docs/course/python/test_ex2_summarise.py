"""Exercise 2: who is on the GPU in each phase, and how much is that together?"""

import unittest

from checking import peakledger, some_ledgers, the
from ledger import PHASES, step


class Summarise(unittest.TestCase):
    def test_the_totals_of_a_step(self):
        totals = {record["phase"]: record["total_mb"] for record in the("ex2_summarise").phase_totals(step())}
        expected = {"load": 1400, "forward": 1900, "loss": 1700, "backward": 2200, "update": 1800, "zero_grad": 1400}
        self.assertEqual(totals, expected)

    def test_phases_come_in_order(self):
        records = the("ex2_summarise").phase_totals(step())
        self.assertEqual([record["phase"] for record in records], PHASES)

    def test_the_states_of_a_phase_are_in_the_order_of_the_list(self):
        update = the("ex2_summarise").phase_totals(step())[PHASES.index("update")]
        self.assertEqual(update["states"], ["parameters", "optimizer_state", "gradients"])

    def test_both_ends_count(self):
        records = the("ex2_summarise").phase_totals([{**step()[3], "start_phase": "loss", "end_phase": "update"}])
        self.assertEqual([record["total_mb"] for record in records], [0, 0, 400, 400, 400, 0])

    def test_what_is_on_the_cpu_is_in_no_total(self):
        records = the("ex2_summarise").phase_totals([{**state, "device": "cpu"} for state in step()])
        self.assertEqual([(record["total_mb"], record["states"]) for record in records], [(0, [])] * 6)

    def test_no_state_is_a_ledger_too(self):
        self.assertEqual([record["total_mb"] for record in the("ex2_summarise").phase_totals([])], [0] * 6)

    def test_a_state_with_faults_is_refused_by_name(self):
        with self.assertRaisesRegex(ValueError, "gradients"):
            the("ex2_summarise").phase_totals([{**state, "size_mb": -state["size_mb"]} for state in step()[3:4]])

    def test_peakledger_has_the_same_totals(self):
        for states in some_ledgers(20):
            told = peakledger("show", "ledger.json", ledger=states)["phases"]
            told = [(phase["phase"], phase["total_mb"], phase["active_states"]) for phase in told]
            records = the("ex2_summarise").phase_totals(states)
            self.assertEqual([(r["phase"], r["total_mb"], r["states"]) for r in records], told, states)


if __name__ == "__main__":
    unittest.main()
