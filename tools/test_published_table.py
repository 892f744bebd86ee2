"""The table's rules, on made-up results."""

import unittest

import published_table


def result(**smallest):
    strategies = [
        dict(strategy=name.replace("_", "-"), refused=None, smallest_peak_bytes=peak) for name, peak in smallest.items()
    ]
    return dict(peak_before_bytes=4_000_000_000, strategies=strategies)


class Rows(unittest.TestCase):
    def test_reductions_stand_beside_those_of_the_paper(self):
        lines, below = published_table.rows({"vgg19": result(auto=1_000_000_000, chen_budget=3_000_000_000)})
        self.assertEqual(lines[3].split(), ["auto", "1.00", "-75%"])
        # The paper's 34 % for Chen's on VGG19.
        self.assertEqual(lines[4].split(), ["chen-budget", "3.00", "-25%", "(34)"])
        self.assertEqual(below, {})

    def test_a_strategy_below_auto_is_named(self):
        _, below = published_table.rows({"vgg19": result(auto=2_000_000_000, knapsack=1_999_999_999)})
        self.assertEqual(below, {"vgg19": ["knapsack"]})

    def test_a_refusal_is_no_peak(self):
        refusing = result(auto=2_000_000_000, lower_set_exact=0)
        refusing["strategies"][1]["refused"] = "too many lower sets"
        lines, below = published_table.rows({"vgg19": refusing})
        self.assertEqual(lines[4].split(), ["lower-set-exact", "refused"])
        self.assertEqual(below, {})


if __name__ == "__main__":
    unittest.main()
