//! The mask of MaxPool: for every output element, the position in the input that it came from.

use super::{Group, Like, Part, Read, Site, Variant, Write, part, tensor};
use crate::graph::{AttributeValue, ElementType};

/// Positions as int32 instead of int64, which take twice as much as the values.
pub(super) const NARROW_MASK: Variant = Variant {
    name: "narrow-pooling-mask",
    group: Group::Masks,
    replace: narrow,
};

fn narrow(site: &Site) -> Option<Vec<Part>> {
    let node = site.node;
    let (x, y, mask) = (node.input(0)?, node.output(0)?, node.output(1)?);
    // A mask numbers the elements of the whole input.
    let positions = site.graph.tensor(x).element_count()?;
    let applies = node.is("", "MaxPool")
        && positions <= i32::MAX as u64
        && !site.uses.readers(mask).is_empty()
        && !site.graph.outputs.contains(&mask);
    let new = |suffix: &str, element| Write::New {
        suffix: suffix.to_owned(),
        shape: Like::Tensor(mask),
        element,
    };
    applies.then(|| {
        let wide = new("mask_int64", ElementType::Int64);
        let mut pool = part(
            "",
            "MaxPool",
            [tensor(x)],
            [Some(Write::Tensor(y)), Some(wide)],
        );
        pool.attributes.clone_from(&node.attributes);
        let narrow = new("mask_int32", ElementType::Int32);
        vec![
            pool,
            part("", "Cast", [Some(Read::Output(0, 1))], [Some(narrow)])
                .with("to", AttributeValue::Int(ElementType::Int32 as i64)),
            part(
                "",
                "Cast",
                [Some(Read::Output(1, 0))],
                [Some(Write::Tensor(mask))],
            )
            .with("to", AttributeValue::Int(ElementType::Int64 as i64)),
        ]
    })
}
