//! Subgraphs: what a Scan does at each step of a sequence, and what an If does in either case.

use std::sync::Arc;

use super::operation::{NewNode, op, op_of};
use super::site::LoweringSite;
use crate::graph::{AttributeValue, Body, ElementType, Graph, Tensor, TensorId, TensorKind};

/// A subgraph while it grows. Its tensors are not those of the graph around it.
pub(super) struct NewBody {
    graph: Graph,
    element: ElementType,
    prefix: String,
    captures: Vec<TensorId>,
}

impl NewBody {
    /// Of tensors of one type. `prefix` begins all its names: a name may be there once in a file.
    pub(super) fn new(prefix: &str, element: ElementType) -> NewBody {
        NewBody {
            graph: Graph::new(prefix),
            element,
            prefix: prefix.to_owned(),
            captures: Vec::new(),
        }
    }

    /// The next of what it is given: first what is carried on, then a step of each sequence.
    pub(super) fn input(&mut self) -> TensorId {
        let id = self.tensor("given", TensorKind::Input);
        self.graph.inputs.push(id);
        id
    }

    /// A tensor of the graph around it.
    pub(super) fn outer(&mut self, site: &LoweringSite, id: TensorId) -> TensorId {
        if let Some(known) = self.graph.tensor_named(site.name(id)) {
            return known;
        }
        self.captures.push(id);
        self.graph.add_tensor(Tensor {
            element: Some(self.element),
            ..Tensor::new(site.name(id), TensorKind::Input)
        })
    }

    pub(super) fn add(&mut self, operation: NewNode) -> TensorId {
        let output = self.tensor(operation.op_type, TensorKind::Value);
        let name = self.graph.tensor(output).name.clone();
        self.graph
            .add_node(operation.named(name, vec![Some(output)]));
        output
    }

    /// As the attribute of a node.
    fn of(self, attribute: &str) -> Body {
        Body {
            attribute: attribute.to_owned(),
            graph: Arc::new(self.graph),
            shaped: None,
        }
    }

    fn tensor(&mut self, of: &str, kind: TensorKind) -> TensorId {
        let name = format!("{}/{of}_{}", self.prefix, self.graph.tensor_count());
        self.graph.add_tensor(Tensor {
            element: Some(self.element),
            ..Tensor::new(name, kind)
        })
    }
}

/// Puts a Scan: `carried` are the first values of what goes from one step to the next, `sequences` what each step has one of, and
/// `results` those of the body, what is carried on first. It begins with the last step where it runs `backwards`.
pub(super) fn scan(
    site: &mut LoweringSite,
    mut body: NewBody,
    (carried, sequences): (&[TensorId], &[TensorId]),
    results: &[TensorId],
    backwards: bool,
) -> Vec<TensorId> {
    for &result in results {
        body.graph.outputs.push(result);
    }
    let inputs = carried.iter().chain(sequences).copied().map(Some);
    let mut scan = op_of("Scan", inputs.collect())
        .with("body", AttributeValue::Opaque)
        .int("num_scan_inputs", sequences.len() as i64);
    if backwards {
        scan = scan
            .ints("scan_input_directions", &vec![1; sequences.len()])
            .ints(
                "scan_output_directions",
                &vec![1; results.len() - carried.len()],
            );
    }
    scan.captures = body.captures.clone();
    scan.bodies = vec![body.of("body")];
    let outputs: Vec<TensorId> = results.iter().map(|_| site.new_tensor("Scan")).collect();
    site.put_all(scan, outputs.iter().copied().map(Some).collect());
    outputs
}

/// An If, not put yet: each of the two bodies comes with its one result, first that for where the condition holds.
pub(super) fn choice(condition: TensorId, bodies: [(NewBody, TensorId); 2]) -> NewNode {
    let mut node = op("If", [condition]);
    for ((mut body, result), attribute) in bodies.into_iter().zip(["then_branch", "else_branch"]) {
        body.graph.outputs.push(result);
        for &capture in &body.captures {
            if !node.captures.contains(&capture) {
                node.captures.push(capture);
            }
        }
        node = node.with(attribute, AttributeValue::Opaque);
        node.bodies.push(body.of(attribute));
    }
    node
}
