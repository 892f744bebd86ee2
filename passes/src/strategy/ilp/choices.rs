//! The implementations that MONeT's program may choose from: variants of single backward nodes.

use super::monet::{Choice, Implementation, Intermediate};
use super::units::Units;
use crate::analysis::liveness::TENSOR;
use crate::bytes::Bytes;
use crate::graph::{NodeId, TensorId, TensorKind, Uses};
use crate::operators::variants::{Group, Like, Part, Read, VARIANTS, Variant, Write};
use crate::strategy::Task;

/// So many nodes have a choice at most: those that read most.
const MOST_CHOICES: usize = 40;

/// Every backward node with at least one variant that reads other forward results, the largest
/// first.
pub(super) fn choices(task: &Task<'_>, units: &Units, groups: &[Group]) -> Vec<Choice> {
    let uses = Uses::of(task.graph);
    let mut found: Vec<(u64, Choice)> = Vec::new();
    for (unit, of) in units.units.iter().enumerate().skip(units.forward) {
        for &node in &of.nodes {
            let mut options = vec![Implementation {
                variant: None,
                reads: units
                    .read_by(node)
                    .filter(|&from| from < units.forward)
                    .collect(),
                intermediate: None,
                time: 0.0,
            }];
            let allowed = VARIANTS.iter().filter(|variant| {
                groups.contains(&variant.group) && variant.suits(task.device.provider)
            });
            for variant in allowed {
                if let Some(parts) = variant.parts(task.graph, &uses, node)
                    && let Some(mut option) = implementation(task, units, unit, node, &parts)
                    && (&option.reads, option.intermediate)
                        != (&options[0].reads, options[0].intermediate)
                {
                    option.variant = Some(variant);
                    options.push(option);
                }
            }
            if options.len() > 1 {
                let sizes = task
                    .graph
                    .node(node)
                    .reads()
                    .map(|tensor| bytes(task, tensor));
                let choice = Choice {
                    node,
                    unit,
                    options,
                };
                found.push((sizes.sum::<Bytes>().0, choice));
            }
        }
    }
    found.sort_by_key(|(bytes, choice)| (std::cmp::Reverse(*bytes), choice.node));
    found.truncate(MOST_CHOICES);
    found.into_iter().map(|(_, choice)| choice).collect()
}

/// Variants of forward nodes: the same results in less memory.
pub(super) fn dominating(
    task: &Task<'_>,
    units: &Units,
    groups: &[Group],
) -> Vec<(NodeId, &'static Variant)> {
    let uses = Uses::of(task.graph);
    let forward = units.units[..units.forward].iter();
    let nodes = forward.flat_map(|unit| unit.nodes.iter().copied());
    let variant = |node: NodeId| {
        let mut allowed = VARIANTS.iter().filter(|variant| {
            groups.contains(&variant.group) && variant.suits(task.device.provider)
        });
        let applies = |variant: &&Variant| variant.parts(task.graph, &uses, node).is_some();
        Some((node, allowed.find(applies)?))
    };
    nodes.filter_map(variant).collect()
}

fn bytes(task: &Task<'_>, tensor: TensorId) -> Bytes {
    task.graph.tensor(tensor).bytes().unwrap_or(Bytes::ZERO)
}

/// What the parts read of the forward part; `None` if that is not kept with the results of a unit.
fn implementation(
    task: &Task<'_>,
    units: &Units,
    unit: usize,
    node: NodeId,
    parts: &[Part],
) -> Option<Implementation> {
    let mut option = Implementation {
        variant: None,
        reads: Vec::new(),
        intermediate: None,
        time: 0.0,
    };
    let of_node = task.costs[node.index()].time.0 as f64;
    // By part: does it read anything of the backward part?
    let mut late: Vec<bool> = Vec::new();
    for part in parts {
        let mut from: Vec<usize> = Vec::new();
        let mut is_late = part.inputs.is_empty();
        for read in part.inputs.iter().flatten() {
            match *read {
                Read::Tensor(tensor) => match units.unit_of[tensor.index()] {
                    Some(of) if of < units.forward => from.push(of),
                    Some(of) => is_late |= of != unit || of >= units.forward,
                    // The caller's, or inside of a unit: only what was read before is known to be there.
                    None if task.graph.node(node).reads().any(|read| read == tensor) => {
                        is_late |= task.graph.tensor(tensor).kind == TensorKind::Value;
                    }
                    None => return None,
                },
                Read::Output(at, _) => is_late |= late[at] && !parts[at].inputs.is_empty(),
            }
        }
        let shrinks = |write: &Write| match write {
            Write::New {
                shape: Like::Tensor(like),
                element,
                ..
            } => {
                let count = task.graph.tensor(*like).element_count()?;
                let size = element.bytes(count);
                (size < bytes(task, *like)).then_some(size)
            }
            _ => None,
        };
        let mask = part.outputs.iter().flatten().find_map(shrinks);
        match (is_late, mask, from.as_slice()) {
            (false, Some(size), &[of]) if option.intermediate.is_none() => {
                option.intermediate = Some(Intermediate {
                    from: of,
                    bytes: (size + TENSOR).0 as f64,
                    // It reads what the node reads, and writes less.
                    time: of_node / 2.0,
                });
            }
            _ => option.reads.extend(from),
        }
        late.push(is_late);
    }
    // Every node more reads and writes what the node does.
    let computing = parts.iter().filter(|part| !part.inputs.is_empty()).count();
    let intermediates = usize::from(option.intermediate.is_some());
    option.time = of_node * computing.saturating_sub(1 + intermediates) as f64;
    option.reads.sort_unstable();
    option.reads.dedup();
    Some(option)
}
