//! Dimension expressions as exporters write them: `128*batch`, `floor(width/2 - 1/2) + 1`.
//!
//! Sums, products and quotients of integers and names, `floor`, `ceiling`, `Max` and `Min`,
//! computed exactly with fractions.

use std::cell::RefCell;
use std::collections::BTreeSet;

/// The value of `text`, where it is a size and every name in it has a `value`.
pub(super) fn evaluate(text: &str, value: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let mut parser = ExpressionParser {
        rest: text.trim(),
        value: &value,
        depth: 0,
    };
    let result = parser.sum()?;
    if !parser.rest.is_empty() || result.denominator != 1 {
        return None;
    }
    u64::try_from(result.numerator).ok()
}

/// The names in `text`, where it is an expression.
pub(super) fn names(text: &str) -> Option<BTreeSet<String>> {
    let names = RefCell::new(BTreeSet::new());
    let value = |name: &str| {
        names.borrow_mut().insert(name.to_owned());
        // Of this size, whatever can be divided can be.
        Some(720_720)
    };
    evaluate(text, value)?;
    Some(names.into_inner())
}

/// In lowest terms, the denominator positive.
#[derive(Clone, Copy)]
struct Fraction {
    numerator: i128,
    denominator: i128,
}

impl Fraction {
    fn new(numerator: i128, denominator: i128) -> Option<Fraction> {
        if denominator == 0 {
            return None;
        }
        let divisor = greatest_common_divisor(numerator, denominator)?;
        let sign = denominator.signum();
        Some(Fraction {
            numerator: numerator.checked_div(divisor)?.checked_mul(sign)?,
            denominator: denominator.checked_div(divisor)?.checked_mul(sign)?,
        })
    }

    fn whole(value: i128) -> Option<Fraction> {
        Fraction::new(value, 1)
    }

    fn plus(self, other: Fraction) -> Option<Fraction> {
        let left = self.numerator.checked_mul(other.denominator)?;
        let right = other.numerator.checked_mul(self.denominator)?;
        Fraction::new(
            left.checked_add(right)?,
            self.denominator.checked_mul(other.denominator)?,
        )
    }

    fn times(self, other: Fraction) -> Option<Fraction> {
        Fraction::new(
            self.numerator.checked_mul(other.numerator)?,
            self.denominator.checked_mul(other.denominator)?,
        )
    }

    fn inverse(self) -> Option<Fraction> {
        Fraction::new(self.denominator, self.numerator)
    }

    fn floor(self) -> i128 {
        self.numerator.div_euclid(self.denominator)
    }

    fn at_least(self, other: Fraction) -> Option<bool> {
        let difference = self.plus(Fraction::whole(-1)?.times(other)?)?;
        Some(difference.numerator >= 0)
    }
}

fn greatest_common_divisor(a: i128, b: i128) -> Option<i128> {
    let (mut a, mut b) = (a.checked_abs()?, b.checked_abs()?);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    Some(a.max(1))
}

struct ExpressionParser<'a> {
    rest: &'a str,
    value: &'a dyn Fn(&str) -> Option<u64>,
    depth: usize,
}

/// Deeper parentheses are not a dimension.
const DEEPEST: usize = 32;

impl<'a> ExpressionParser<'a> {
    fn takes(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Option<Fraction> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let negative = self.takes("-");
        let mut total = self.product()?;
        if negative {
            total = Fraction::whole(-1)?.times(total)?;
        }
        loop {
            if self.takes("+") {
                total = total.plus(self.product()?)?;
            } else if self.takes("-") {
                total = total.plus(Fraction::whole(-1)?.times(self.product()?)?)?;
            } else {
                self.depth -= 1;
                return Some(total);
            }
        }
    }

    fn product(&mut self) -> Option<Fraction> {
        let mut total = self.factor()?;
        loop {
            if self.rest.starts_with("**") {
                return None;
            } else if self.takes("//") {
                let quotient = total.times(self.factor()?.inverse()?)?;
                total = Fraction::whole(quotient.floor())?;
            } else if self.takes("*") {
                total = total.times(self.factor()?)?;
            } else if self.takes("/") {
                total = total.times(self.factor()?.inverse()?)?;
            } else {
                return Some(total);
            }
        }
    }

    fn factor(&mut self) -> Option<Fraction> {
        if self.takes("(") {
            let inner = self.sum()?;
            return self.takes(")").then_some(inner);
        }
        let word = self.word()?;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return Fraction::whole(word.parse().ok()?);
        }
        if self.takes("(") {
            return self.call(word);
        }
        Fraction::whole((self.value)(word)?.into())
    }

    fn call(&mut self, function: &str) -> Option<Fraction> {
        let mut result = self.sum()?;
        match function {
            "floor" => result = Fraction::whole(result.floor())?,
            "ceiling" => {
                let negative = Fraction::whole(-1)?.times(result)?;
                result = Fraction::whole(negative.floor().checked_neg()?)?;
            }
            "Max" | "Min" => {
                while self.takes(",") {
                    let other = self.sum()?;
                    if other.at_least(result)? == (function == "Max") {
                        result = other;
                    }
                }
            }
            _ => return None,
        }
        self.takes(")").then_some(result)
    }

    /// A name or a number.
    fn word(&mut self) -> Option<&'a str> {
        let part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        (!word.is_empty()).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::evaluate;

    fn check(text: &str, expected: impl Into<Option<u64>>) {
        let value = |name: &str| match name {
            "batch" => Some(3),
            "width" => Some(224),
            _ => None,
        };
        assert_eq!(evaluate(text, value), expected.into(), "{text}");
    }

    #[test]
    fn expressions_of_exporters_are_computed() {
        check("128*batch", 384);
        check("floor(width/2 - 1/2) + 1", 112); // floor(111.5) + 1
        check("floor(floor(width/2 - 1/2)/2) + 1", 56); // floor(55.5) + 1
        check("ceiling(width/3)", 75); // 74.67
        check("(batch + 1)*(width - 4)", 880);
        check("width//batch", 74);
        check("Max(1, batch)", 3);
        check("Min(1, batch, 2)", 1);
        check("-batch + width", 221);
    }

    #[test]
    fn what_is_no_size_is_unknown() {
        check("batch/2", None); // 1.5
        check("batch - 4", None); // negative
        check("other*2", None);
        check("width/(batch - 3)", None); // division by zero
        check("batch**2", None);
        check("batch batch", None);
        check("sin(batch)", None);
        check("", None);
        check("1 +", None);
        check(&"(".repeat(100_000), None);
        check(&"9".repeat(50), None);
        check(
            &["170141183460469231731687303715884105727"; 2].join("*"),
            None,
        );
    }
}
