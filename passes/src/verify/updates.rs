//! Is memory that is updated in place read and written in the same sequence?

use std::collections::BTreeMap;

use super::values::{roots, updated_tensors};
use super::violation::label;
use super::{Correspondence, Role, Violation, trust};
use crate::graph::{Graph, NodeId, TensorId};

/// Checks that, with `original` run in `original_order` and `rewritten` in `rewritten_order`, the
/// nodes that update memory in place (accumulators, running statistics, optimizers) update each
/// buffer in the same sequence, and that whoever else reads it, copies included, does so after as
/// many updates.
///
/// No dependency need order these accesses: it is the execution order that decides. Branches that
/// share a batch normalization are the usual case: their updates of the running statistics do
/// not commute. `correspondence` is what [`super::equivalence()`] found for the two graphs; the
/// orders are those in which the runtime runs them, such as
/// [`crate::runtime::order`] simulates.
pub fn updates(
    original: &Graph,
    original_order: &[NodeId],
    rewritten: &Graph,
    rewritten_order: &[NodeId],
    correspondence: &Correspondence,
) -> Result<(), Violation> {
    let expected = Accesses::of(original, original_order, Some);
    let found = Accesses::of(rewritten, rewritten_order, |id| {
        match correspondence.role(id) {
            Role::Original(_) => Some(id),
            Role::Copy(_) | Role::Variant(_) | Role::Barrier | Role::Release => None,
        }
    });
    for (buffer, updaters) in &expected.updates {
        let nothing = Vec::new();
        let others = found.updates.get(buffer).unwrap_or(&nothing);
        for position in 0..updaters.len().max(others.len()) {
            let ours = updaters.get(position).copied();
            let theirs = others.get(position).copied();
            if ours.map(Role::Original) != theirs.map(|id| correspondence.role(id)) {
                let say = |graph, id: Option<NodeId>| {
                    id.map_or("nobody".to_owned(), |id| label(graph, id))
                };
                return Err(Violation::UpdateOrder {
                    tensor: buffer.clone(),
                    position: position + 1,
                    expected: say(original, ours),
                    found: say(rewritten, theirs),
                });
            }
        }
    }
    let times: BTreeMap<(NodeId, &str), usize> = expected
        .reads
        .iter()
        .map(|read| ((read.node, read.buffer.as_str()), read.after))
        .collect();
    for read in &found.reads {
        let of = match correspondence.role(read.node) {
            Role::Original(of) | Role::Copy(of) | Role::Variant(of) => of,
            Role::Barrier | Role::Release => continue,
        };
        let wanted = times.get(&(of, read.buffer.as_str())).copied().unwrap_or(0);
        if wanted != read.after {
            return Err(Violation::ReadAtAnotherTime {
                node: label(rewritten, read.node),
                tensor: read.buffer.clone(),
                expected: wanted,
                found: read.after,
            });
        }
    }
    Ok(())
}

/// Who reads and updates the buffers that are updated at all, by the name of the tensor that
/// they were allocated for.
#[derive(Default)]
struct Accesses {
    updates: BTreeMap<String, Vec<NodeId>>,
    reads: Vec<UpdateRead>,
}

struct UpdateRead {
    node: NodeId,
    buffer: String,
    /// How many updates came before.
    after: usize,
}

impl Accesses {
    /// `updater` says whether a node that could update really changes anything.
    fn of(graph: &Graph, order: &[NodeId], updater: impl Fn(NodeId) -> Option<NodeId>) -> Accesses {
        let updated = updated_tensors(graph, order);
        let mut accesses = Accesses::default();
        if !updated.contains(&true) {
            return accesses;
        }
        let roots = roots(graph, order);
        let buffer = |tensor: TensorId| graph.tensor(roots[tensor.index()]).name.clone();
        for &id in order {
            let node = graph.node(id);
            let updates = trust::updated_inputs(node);
            let aliases = trust::aliases(node);
            for (position, tensor) in node.inputs.iter().enumerate() {
                let Some(tensor) = tensor.filter(|tensor| updated[tensor.index()]) else {
                    continue;
                };
                let forwarded = |&(output, input): &(usize, usize)| {
                    input == position
                        && node
                            .output(output)
                            .is_some_and(|o| !graph.outputs.contains(&o))
                };
                // An alias reads nothing: whoever reads it does.
                if updates.contains(&position) || aliases.iter().any(forwarded) {
                    continue;
                }
                accesses.read(id, buffer(tensor));
            }
            for &tensor in node
                .captures
                .iter()
                .filter(|tensor| updated[tensor.index()])
            {
                accesses.read(id, buffer(tensor));
            }
            if let Some(id) = updater(id) {
                for tensor in updates.iter().filter_map(|&position| node.input(position)) {
                    accesses.updates.entry(buffer(tensor)).or_default().push(id);
                }
            }
        }
        accesses
    }

    fn read(&mut self, node: NodeId, buffer: String) {
        let after = self.updates.get(&buffer).map_or(0, Vec::len);
        self.reads.push(UpdateRead {
            node,
            buffer,
            after,
        });
    }
}
