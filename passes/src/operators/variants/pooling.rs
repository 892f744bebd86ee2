//! The mask of MaxPool: for every output element, the position in the input that it came from.

use super::{Group, Like, Part, Read, Site, Variant, Write, cast, part, tensor};
use crate::graph::ElementType;

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
    let new = |suffix: &str, element| Write::new(suffix, Like::Tensor(mask), element);
    applies.then(|| {
        let (narrow, wide) = (ElementType::Int32, ElementType::Int64);
        let outputs = [Write::Tensor(y), new("mask_int64", wide)].map(Some);
        vec![
            part("", "MaxPool", [tensor(x)], outputs).like(node),
            cast(Read::Output(0, 1), narrow, new("mask_int32", narrow)),
            cast(Read::Output(1, 0), wide, Write::Tensor(mask)),
        ]
    })
}
