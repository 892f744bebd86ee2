//! A budget, and how it was written.

use std::fmt;
use std::str::FromStr;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::optimize::BudgetRequest;

use super::size::{self, SizeProblem};

/// What one training step may take, what the caller owns included.
///
/// `"8GiB".parse()`, `"60%".parse()` (of the peak of the unmodified graph), `"fixed+50%".parse()` (what the caller
/// owns and half of the rest), `"min".parse()` (at most 0.5 % above the smallest peak that is found), or `Bytes(8 << 30).into()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    pub(crate) request: BudgetRequest,
    /// As the user wrote it.
    text: String,
}

impl FromStr for Budget {
    type Err = SizeProblem;

    fn from_str(text: &str) -> Result<Budget, SizeProblem> {
        Ok(Budget {
            request: size::budget(text)?,
            text: text.trim().to_owned(),
        })
    }
}

impl From<Bytes> for Budget {
    fn from(bytes: Bytes) -> Budget {
        Budget {
            request: BudgetRequest::Bytes(bytes),
            text: bytes.0.to_string(),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
