//! Amounts of memory.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// A number of bytes. Arithmetic saturates: sizes come from untrusted files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No memory at all.
    pub const ZERO: Bytes = Bytes(0);

    /// So large a part of it, to the 53 bits of a float; the whole is all of it, whatever its size.
    pub fn part(self, part: f64) -> Bytes {
        let of = Bytes((self.0 as f64 * part) as u64);
        match part {
            1.0 => self,
            0.0..1.0 => of.min(self),
            _ => of,
        }
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(items: I) -> Bytes {
        items.fold(Bytes::ZERO, Add::add)
    }
}

/// Binary units with three significant digits: `1.50 GiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = if value < 9.995 {
            2
        } else if value < 99.95 {
            1
        } else {
            0
        };
        write!(f, "{value:.decimals$} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn shows_three_significant_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (10 * 1024 * 1024, "10.0 MiB"),
            (1000 * 1024 * 1024, "0.98 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn the_whole_is_all_of_it_and_no_part_is_more() {
        // A float would round them to the next multiple of four, and of two.
        for bytes in [Bytes((1 << 55) + 3), Bytes((1 << 54) + 1)] {
            assert_eq!(bytes.part(1.0), bytes);
            assert!(bytes.part(1.0_f64.next_down()) <= bytes);
        }
        assert_eq!(Bytes(1000).part(0.6), Bytes(600));
        assert_eq!(Bytes(1000).part(1.5), Bytes(1500));
    }

    #[test]
    fn saturates_instead_of_wrapping() {
        assert_eq!(Bytes(u64::MAX) + Bytes(1), Bytes(u64::MAX));
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
    }
}
