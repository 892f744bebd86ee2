"""What the ablation's verdict says of made-up plans."""

import unittest

import ablation


def made(overhead, peak=0):
    return {"overhead": overhead, "peak_after_bytes": peak, "fixed_bytes": 0, "variants": 0}


def rows(none, both, budget="fixed+50%"):
    return [("g", budget, {"none": none, "all": both})]


class Verdict(unittest.TestCase):
    def test_a_fifth_less_overhead_is_enough(self):
        sentences, well = ablation.verdict(rows(made(0.10), made(0.08)))
        self.assertEqual(sentences, ["g: never worse; 20 % less overhead on average"])
        self.assertTrue(well)
        self.assertFalse(ablation.verdict(rows(made(0.10), made(0.09)))[1])

    def test_a_smaller_smallest_peak_is_enough(self):
        both = rows(made(0.1, 100e6), made(0.1, 99e6), "min") + rows(made(0.1), made(0.1))
        self.assertTrue(ablation.verdict(both)[1])

    def test_a_plan_that_is_worse_or_missing_is_told(self):
        for both in (made(0.11), None):
            sentences, well = ablation.verdict(rows(made(0.10), both))
            self.assertIn("worse at fixed+50%", sentences[0])
            self.assertFalse(well)

    def test_nothing_is_worse_where_nothing_fitted(self):
        self.assertFalse(ablation.is_worse(None, None, "min"))
        self.assertFalse(ablation.is_worse(None, made(0.1), "fixed+50%"))


if __name__ == "__main__":
    unittest.main()
