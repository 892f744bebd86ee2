//! Refuses graphs in which a node updates in place what comes of an operator that the runtime takes apart.

use crate::graph::{Graph, Node, Uses};
use crate::operators::{self, Provider};
use crate::runtime::functions::function;
use crate::verify::Violation;

/// Does no node update memory that belongs to a result of what is taken apart? Whose memory it is then, cannot be proved.
pub(super) fn check(graph: &Graph, provider: Provider) -> Result<(), Violation> {
    let uses = Uses::of(graph);
    for node in graph.nodes() {
        for tensor in operators::updated_inputs(node)
            .into_iter()
            .filter_map(|position| node.input(position))
        {
            let mut at = Some(tensor);
            while let Some(tensor) = at
                && let Some(writer) = uses.producer(tensor)
            {
                let written = graph.node(writer);
                if function(graph, written, provider).is_some() {
                    let name = |node: &Node| format!("{} \"{}\"", node.op_type, node.name);
                    return Err(Violation::UpdatesPieces {
                        node: name(node),
                        tensor: graph.tensor(tensor).name.clone(),
                        writer: name(written),
                    });
                }
                let aliases = operators::aliases(written).into_iter();
                let mut of = aliases.filter(|&(to, _)| written.output(to) == Some(tensor));
                at = of.next().and_then(|(_, from)| written.input(from));
            }
        }
    }
    Ok(())
}
