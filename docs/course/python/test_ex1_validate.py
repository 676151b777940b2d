"""Exercise 1: does the record of a state make sense?"""

import unittest

from checking import peakledger, the
from ledger import step

WRONG = {
    "name": [None, ""],
    "category": ["weights", None],
    "size_mb": [-1.0, "800", True, None],
    "device": ["tpu", None],
    "start_phase": ["warmup", None],
    "end_phase": ["cooldown", None],
    "persistent": ["yes", 1, None],
}


class Validate(unittest.TestCase):
    def test_a_sound_state_has_no_faults(self):
        for state in step():
            self.assertEqual(the("ex1_validate").faults(state), [], state)

    def test_each_wrong_field_is_named(self):
        for field, values in WRONG.items():
            for value in values:
                state = {**step()[0], field: value}
                self.assertEqual(the("ex1_validate").faults(state), [field], state)

    def test_a_field_that_is_not_there_is_wrong(self):
        for field in WRONG:
            state = step()[0]
            del state[field]
            self.assertEqual(the("ex1_validate").faults(state), [field], state)

    def test_an_end_before_the_beginning_is_wrong(self):
        state = {**step()[2], "start_phase": "backward", "end_phase": "forward"}
        self.assertEqual(the("ex1_validate").faults(state), ["end_phase"])

    def test_both_ends_may_be_the_same(self):
        state = {**step()[2], "start_phase": "loss", "end_phase": "loss"}
        self.assertEqual(the("ex1_validate").faults(state), [])

    def test_all_faults_are_named_in_order(self):
        self.assertEqual(the("ex1_validate").faults({}), list(WRONG))

    def test_peakledger_refuses_the_same(self):
        for field, values in WRONG.items():
            for value in values:
                state = {**step()[0], field: value}
                accepted = peakledger("check", "ledger.json", ledger=[state]) is not None
                self.assertEqual(accepted, the("ex1_validate").faults(state) == [], state)


if __name__ == "__main__":
    unittest.main()
