//! Amounts of memory as people write them.

use ckpt_passes::bytes::Bytes;
use ckpt_passes::optimize::BudgetRequest;
use thiserror::Error;

/// Why a text is no size or no budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SizeProblem {
    /// Not in any form that is understood.
    #[error("expected {0}")]
    Form(&'static str),
    /// Nothing at all.
    #[error("it must be more than zero; expected {0}")]
    Zero(&'static str),
    /// More than 64 bits hold.
    #[error("it is more than 16 EiB; expected {0}")]
    TooLarge(&'static str),
}

const SIZES: &str = "bytes: 8GiB, 800MB, 1.5GB or 123456789";
const BUDGETS: &str = "bytes (8GiB, 800MB, 1.5GB, 123456789), a part of the peak of the \
                       unmodified graph (60%), what the caller owns and a part of the rest \
                       (fixed+50%), or min";

/// The units, in lower case.
const UNITS: [(&str, u64); 9] = [
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// A budget: `8GiB`, `60%`, `fixed+50%`, `min`.
pub(crate) fn budget(text: &str) -> Result<BudgetRequest, SizeProblem> {
    let text = text.trim();
    let fixed = text.strip_prefix("fixed+");
    match (fixed, fixed.unwrap_or(text).strip_suffix('%')) {
        (Some(_), Some(percent)) => Ok(BudgetRequest::FixedPlusPart(part(percent)?)),
        (None, Some(percent)) => Ok(BudgetRequest::PartOfPeak(part(percent)?)),
        (Some(_), None) => Err(SizeProblem::Form(BUDGETS)),
        (None, None) if text == "min" => Ok(BudgetRequest::Smallest),
        (None, None) => match bytes(text, BUDGETS)? {
            Bytes::ZERO => Err(SizeProblem::Zero(BUDGETS)),
            bytes => Ok(BudgetRequest::Bytes(bytes)),
        },
    }
}

/// An amount that may be zero: `2GiB`, `0`.
pub fn size(text: &str) -> Result<Bytes, SizeProblem> {
    bytes(text.trim(), SIZES)
}

/// 0.6 for `60`.
fn part(percent: &str) -> Result<f64, SizeProblem> {
    let percent = percent.trim_end();
    Decimal::parse(percent).ok_or(SizeProblem::Form(BUDGETS))?;
    let part = percent.parse::<f64>().unwrap_or(f64::NAN) / 100.0;
    if part == 0.0 {
        Err(SizeProblem::Zero(BUDGETS))
    } else if part.is_finite() {
        Ok(part)
    } else {
        Err(SizeProblem::TooLarge(BUDGETS))
    }
}

fn bytes(text: &str, forms: &'static str) -> Result<Bytes, SizeProblem> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = Decimal::parse(number).ok_or(SizeProblem::Form(forms))?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let factor = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some(&(_, factor)) => factor,
        // Part of a byte is no amount; most likely a unit was forgotten.
        None if unit.is_empty() && number.fraction == 0 => 1,
        None => return Err(SizeProblem::Form(forms)),
    };
    number
        .times(factor)
        .map(Bytes)
        .ok_or(SizeProblem::TooLarge(forms))
}

/// `whole + fraction / 10^9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal {
    /// `None` if it is more than 64 bits hold.
    whole: Option<u64>,
    fraction: u64,
}

impl Decimal {
    /// Digits with at most one point; what lies behind the ninth decimal is dropped.
    fn parse(text: &str) -> Option<Decimal> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || whole.len() + fraction.len() == 0 {
            return None;
        }
        let nine: String = fraction
            .chars()
            .chain(std::iter::repeat('0'))
            .take(9)
            .collect();
        Some(Decimal {
            whole: if whole.is_empty() {
                Some(0)
            } else {
                whole.parse().ok()
            },
            fraction: nine.parse().ok()?,
        })
    }

    /// Rounded down.
    fn times(self, factor: u64) -> Option<u64> {
        let fraction = u128::from(self.fraction) * u128::from(factor) / 1_000_000_000;
        let whole = self.whole?.checked_mul(factor)?;
        whole.checked_add(u64::try_from(fraction).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("800MB", 800_000_000),
            ("1.5GB", 1_500_000_000),
            ("1.5 gib", 3 << 29),
            ("123456789", 123_456_789),
            ("0", 0),
            ("0.5B", 0),
            (".25KiB", 256),
            ("2.KB", 2_000),
            ("18446744073709551615", u64::MAX),
            // 16 TiB less one byte: 2^44 - 1 = 17592186044415
            ("17592186044415b", (1 << 44) - 1),
            // 0.1 * 2^30 = 107374182.4
            ("0.1GiB", 107_374_182),
        ] {
            assert_eq!(size(text), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn budgets_have_four_forms() {
        for (text, budget_request) in [
            ("8GiB", BudgetRequest::Bytes(Bytes(8 << 30))),
            ("60%", BudgetRequest::PartOfPeak(0.6)),
            ("12.5 %", BudgetRequest::PartOfPeak(0.125)),
            ("fixed+50%", BudgetRequest::FixedPlusPart(0.5)),
            ("min", BudgetRequest::Smallest),
        ] {
            assert_eq!(budget(text), Ok(budget_request), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "GiB",
            "-5",
            "-5GiB",
            "+5",
            "NaN",
            "inf",
            "1e9",
            "0x10",
            "1.2.3GB",
            ".",
            "1.5",
            "8G",
            "8Gb/s",
            "8 Gi B",
            "１GiB",
            "%",
            "-10%",
            "NaN%",
            "1e3%",
            "fixed",
            "fixed+",
            "fixed+8GiB",
            "fixed+-5%",
            "minimum",
            "60 % of it",
        ] {
            assert_eq!(budget(text), Err(SizeProblem::Form(BUDGETS)), "{text}");
        }
        for text in ["60%", "min", "fixed+50%"] {
            assert_eq!(size(text), Err(SizeProblem::Form(SIZES)), "{text}");
        }
    }

    #[test]
    fn nothing_and_more_than_everything_are_refused() {
        for text in ["0", "0GiB", "0.0000000001KB", "0%", "0.0%", "fixed+0%"] {
            assert_eq!(budget(text), Err(SizeProblem::Zero(BUDGETS)), "{text}");
        }
        let many_digits = format!("{}%", "9".repeat(400));
        for text in [
            "18446744073709551616",
            "16777216TiB",
            "99999999999999999999999999999999999GiB",
            &many_digits,
        ] {
            assert_eq!(budget(text), Err(SizeProblem::TooLarge(BUDGETS)), "{text}");
        }
    }
}
