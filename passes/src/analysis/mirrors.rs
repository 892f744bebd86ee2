//! Which nodes are mirrors, and of what: their marker and their names.

use crate::graph::Node;
use crate::runtime::fused_pairs::is_activation_of_gemm;

/// The attribute that marks a mirror and numbers it. ONNX Runtime's common-subexpression
/// elimination compares all attributes, so a marked node is never merged with its original;
/// attributes that start with two underscores are accepted on every operator. An activation that the runtime
/// fuses with a Gemm must not have it: see [`UnmarkFused`](crate::enforce::unmark_fused::UnmarkFused).
pub const MARKER: &str = "__recompute";

const SUFFIX: &str = "/recompute_";

/// May the runtime fuse it with a Gemm before it? Then, as a mirror, it may be without its marker.
pub fn may_be_unmarked(node: &Node) -> bool {
    is_activation_of_gemm(node)
}

/// The name of copy `number` of the node or tensor called `original`.
pub fn mirror_name(original: &str, number: u32) -> String {
    format!("{original}{SUFFIX}{number}")
}

/// The name of the tensor that this one is computed again in place of, or its own.
pub fn original_tensor(name: &str) -> &str {
    let parts = name.rsplit_once(SUFFIX);
    let is_number = |ending: &str| ending.parse::<u32>().is_ok();
    parts.map_or(
        name,
        |(of, number)| if is_number(number) { of } else { name },
    )
}

/// The number of a mirror, or of what it is made of.
pub fn mirror_number(node: &Node) -> Option<u32> {
    let of_name = || node.name.rsplit_once(SUFFIX)?.1.parse().ok();
    match node.int(MARKER) {
        Some(number) => u32::try_from(number).ok(),
        None => may_be_unmarked(node).then(of_name)?,
    }
}

/// Is it a mirror, or its last node, where a mirror is made of several?
pub fn is_mirror(node: &Node) -> bool {
    mirrored(node).is_some()
}

/// The name of the node that this is a mirror of.
pub fn mirrored(node: &Node) -> Option<&str> {
    of_mirror(&node.name, mirror_number(node)?)
}

/// The name of the node that this is a mirror of, or belongs to one of.
pub fn mirrored_or_part(node: &Node) -> Option<&str> {
    let mirror = || of_mirror(node.name.rsplit_once('/')?.0, mirror_number(node)?);
    mirrored(node).or_else(mirror)
}

fn of_mirror(name: &str, number: u32) -> Option<&str> {
    name.strip_suffix(&mirror_name("", number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::AttributeValue;

    fn node(name: &str, operator: &str, marker: Option<i64>) -> Node {
        let mut node = Node::new(name, "", operator, Vec::new(), Vec::new());
        if let Some(number) = marker {
            node.set_attribute(MARKER, AttributeValue::Int(number));
        }
        node
    }

    #[test]
    fn mirrors_are_known_by_marker_and_name() {
        let names = |name: &str, operator: &str, marker: Option<i64>| {
            let node = node(name, operator, marker);
            let text = |name: Option<&str>| name.unwrap_or("-").to_owned();
            [text(mirrored(&node)), text(mirrored_or_part(&node))].join(" ")
        };
        assert_eq!(names("a/recompute_2", "Exp", Some(2)), "a a");
        assert_eq!(names("a/recompute_2", "Exp", Some(3)), "- -");
        assert_eq!(names("a/recompute_2", "Exp", None), "- -");
        assert_eq!(names("a/recompute_2/0", "Mul", Some(2)), "- a");
        assert_eq!(names("a/recompute_2", "Exp", Some(-2)), "- -");
        assert_eq!(names("a", "Exp", Some(1)), "- -");
    }

    #[test]
    fn activations_are_known_by_their_names_alone() {
        let number = |name: &str, operator: &str| mirror_number(&node(name, operator, None));
        assert_eq!(number("a/recompute_12", "Relu"), Some(12));
        assert_eq!(number("a/recompute_1/recompute_2", "Tanh"), Some(2));
        assert_eq!(number("a/recompute_", "Relu"), None);
        assert_eq!(number("a/recompute_x", "Relu"), None);
        assert_eq!(number("a/recompute_99999999999", "Relu"), None);
        assert_eq!(number("a", "Relu"), None);
    }
}
