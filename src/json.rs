//! Results as JSON.

use serde::Serialize;

/// The object on one line, with a line feed.
pub(crate) fn line(object: &impl Serialize) -> String {
    // Fails for maps with keys that are not strings, of which there are none.
    let mut text = serde_json::to_string(object).unwrap_or_default();
    text.push('\n');
    text
}
