//! Value numbering of the original graph.
//!
//! Two tensors have the same *value* if the same computation on the same values makes them, so
//! that either may be read for the other. The computation of a node is its operator, attributes
//! and input values; nodes that must not be repeated have one of their own.

use std::collections::{BTreeSet, HashMap};

use super::trust;
use super::violation::{Violation, label};
use crate::graph::{AttributeValue, ElementType, Graph, Node, NodeId, TensorId, TensorKind};

/// The attribute by which the rewriter marks copies; it has no meaning to the operator.
pub(super) const MARKER: &str = "__recompute";

/// The attribute by which it names a convolution's algorithm: to ONNX Runtime's operators it has no meaning either.
pub(super) const ALGORITHM: &str = "__ckpt_conv_algo";

/// The number of a value. Tensors with the same number hold the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ValueNumber(pub(super) u32);

/// What a node computes, whoever computes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Computation {
    pub(super) domain: String,
    pub(super) op_type: String,
    /// Name and value, by name; floats by their shortest exact text.
    pub(super) attributes: Vec<(String, String)>,
    /// Without omitted ones at the end.
    pub(super) inputs: Vec<Option<ValueNumber>>,
}

impl Computation {
    /// The computation of `node` on `inputs`.
    pub(super) fn of(node: &Node, mut inputs: Vec<Option<ValueNumber>>) -> Computation {
        let mut attributes: Vec<(String, String)> = node
            .attributes
            .iter()
            .filter(|attribute| ![MARKER, ALGORITHM].contains(&attribute.name.as_str()))
            .map(|attribute| (attribute.name.clone(), exact(&attribute.value)))
            .collect();
        // Without sizes, the outputs alone say into how many equal parts.
        if node.is("", "Split") && node.input(1).is_none() {
            attributes.push(equal_parts(node.outputs.len()));
        }
        attributes.sort();
        while inputs.last().is_some_and(Option::is_none) {
            inputs.pop();
        }
        let (domain, op_type) = (node.domain.clone(), node.op_type.clone());
        Computation {
            domain,
            op_type,
            attributes,
            inputs,
        }
    }
}

/// The value as text. Text does not tell one NaN from another, so their bits are added.
pub(super) fn exact(value: &AttributeValue) -> String {
    let floats = match value {
        AttributeValue::Float(one) => std::slice::from_ref(one),
        AttributeValue::Floats(list) => list,
        _ => &[],
    };
    let mut text = format!("{value:?}");
    for nan in floats.iter().filter(|value| value.is_nan()) {
        text += &format!(" {:#x}", nan.to_bits());
    }
    text
}

/// What a Split into equal parts has besides its attributes.
pub(super) fn equal_parts(count: usize) -> (String, String) {
    ("outputs".to_owned(), count.to_string())
}

/// What a copy may compute.
#[derive(Clone, Debug)]
pub(super) struct Repeatable {
    /// The node that it is a copy of.
    pub(super) original: NodeId,
    /// By position; `None` where a copy's result must not be read for the original's.
    pub(super) outputs: Vec<Option<ValueNumber>>,
    /// Must a copy have the output, though nobody may read it?
    pub(super) written: Vec<bool>,
    /// Why it must not be repeated after all.
    pub(super) forbidden: Option<&'static str>,
    /// The original has no node that computes this: it is another form.
    pub(super) variant: bool,
}

/// Random numbers that a node of the original draws inside: the computation draws others whenever it runs, so that one node alone stands for it.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) by: Computation,
    pub(super) value: ValueNumber,
}

/// The values of the original, and who may compute them again.
pub(super) struct Values {
    /// By tensor.
    pub(super) of: Vec<ValueNumber>,
    /// The type and the shape of each value.
    pub(super) types: Vec<Type>,
    pub(super) repeatable: HashMap<Computation, Repeatable>,
    /// By the node of the original that is taken apart.
    pub(super) drawn: HashMap<NodeId, Drawn>,
    /// By tensor: its contents are in the file, and the caller cannot replace them.
    fixed: Vec<bool>,
    /// The first two tensors with the same value that have different types or shapes.
    contradiction: Option<[TensorId; 2]>,
}

impl Values {
    /// Numbers the values of `graph`, whose nodes are given in a topological `order`.
    /// Nodes that are `permitted` by name may be repeated, approximations that are `allowed` stand for
    /// what they replace. `slices` are numbers of slices in which nodes may work.
    pub(super) fn number(
        graph: &Graph,
        order: &[NodeId],
        permitted: &BTreeSet<String>,
        allowed: &BTreeSet<String>,
        slices: &BTreeSet<u64>,
    ) -> Values {
        let mut values = Values::without_variants(graph, order, permitted);
        values.add_variants(graph, order, allowed, slices);
        values
    }

    fn without_variants(graph: &Graph, order: &[NodeId], permitted: &BTreeSet<String>) -> Values {
        let mut values = Values {
            of: vec![ValueNumber(u32::MAX); graph.tensor_count()],
            types: Vec::new(),
            repeatable: HashMap::new(),
            drawn: HashMap::new(),
            fixed: fixed_tensors(graph),
            contradiction: None,
        };
        let updated = updated_tensors(graph, order);
        for id in graph.tensor_ids() {
            let tensor = graph.tensor(id);
            values.of[id.index()] = values.fresh(tensor.element, tensor.shape.clone());
        }
        for &id in order {
            values.number_node(graph, id, &updated, permitted);
        }
        values
    }

    /// A value like no other.
    pub(super) fn fresh(
        &mut self,
        element: Option<ElementType>,
        shape: Option<Vec<u64>>,
    ) -> ValueNumber {
        self.types.push((element, shape));
        ValueNumber(self.types.len() as u32 - 1)
    }

    fn number_node(
        &mut self,
        graph: &Graph,
        id: NodeId,
        updated: &[bool],
        permitted: &BTreeSet<String>,
    ) {
        let node = graph.node(id);
        if node.is("com.microsoft", "PassThrough") {
            // Whatever forwards a value again is a barrier, a copy of this one as well.
            for (output, input) in trust::aliases(node) {
                if let (Some(output), Some(input)) = (node.output(output), node.input(input))
                    && !updated[input.index()]
                {
                    let value = self.of[input.index()];
                    let two = two_types(&self.types, value, output);
                    self.contradiction = self.contradiction.or(two);
                    self.of[output.index()] = value;
                }
            }
            return;
        }
        let read = |tensor: &Option<TensorId>| tensor.map(|tensor| self.of[tensor.index()]);
        let computation = Computation::of(node, node.inputs.iter().map(read).collect());
        let training = self.training_mode(graph, node);
        let trusted = match training {
            // Nothing is drawn: it hands its input on.
            Some(false) => Ok(()),
            _ => trust::repeatable(node, permitted.contains(&node.name)),
        };
        // Memory that is updated in place is read at one time or another: results that look
        // alike need not be.
        let unsteady = node.reads().any(|tensor| updated[tensor.index()]);
        if let (Ok(()), Some(known)) = (trusted, self.repeatable.get_mut(&computation)) {
            if unsteady {
                known.forbidden = Some(
                    "two nodes of the original look like it and read memory that is updated in place",
                );
                return;
            }
            if known.forbidden.is_none() {
                let count = known.outputs.len().max(node.outputs.len());
                known.outputs.resize(count, None);
                known.written.resize(count, false);
                for position in 0..count {
                    let tensor = node.output(position).filter(|t| !updated[t.index()]);
                    match (known.outputs[position], tensor) {
                        (Some(value), Some(tensor)) => {
                            let two = two_types(&self.types, value, tensor);
                            self.contradiction = self.contradiction.or(two);
                            self.of[tensor.index()] = value;
                        }
                        // The first one that looks like it leaves this output out.
                        (None, Some(tensor)) => {
                            known.outputs[position] = Some(self.of[tensor.index()]);
                        }
                        _ => {}
                    }
                    // A copy may leave out whatever one of them does.
                    known.written[position] &= node.output(position).is_some();
                }
            }
            return;
        }
        let value = |tensor: &Option<TensorId>| {
            tensor
                .filter(|t| !updated[t.index()])
                .map(|tensor| self.of[tensor.index()])
        };
        let outputs: Vec<Option<ValueNumber>> = node.outputs.iter().map(value).collect();
        let written = node.outputs.iter().map(Option::is_some).collect();
        self.special_copies(node, id, &computation, &outputs, training);
        let forbidden = trusted.err();
        let copy = Repeatable {
            original: id,
            outputs,
            written,
            forbidden,
            variant: false,
        };
        self.repeatable.entry(computation).or_insert(copy);
    }

    /// Whether a Dropout draws numbers, where the file says so for good.
    fn training_mode(&self, graph: &Graph, node: &Node) -> Option<bool> {
        let input = node.input(2).filter(|_| node.is("", "Dropout"))?;
        match graph.tensor(input).ints()? {
            &[flag] if self.fixed[input.index()] => Some(flag != 0),
            _ => None,
        }
    }

    /// Copies that are made otherwise than their original.
    fn special_copies(
        &mut self,
        node: &Node,
        original: NodeId,
        computation: &Computation,
        outputs: &[Option<ValueNumber>],
        training: Option<bool>,
    ) {
        let output = |position: usize| outputs.get(position).copied().flatten();
        if node.is("com.microsoft", "BatchNormInternal") {
            // With momentum 1 the statistics become 1 · old + 0 · new: what they were, whether
            // the original has updated them yet or not. The other outputs do not depend on them.
            let mut computation = computation.clone();
            computation
                .attributes
                .retain(|attribute| attribute.0 != "momentum");
            let keep = format!("{:?}", AttributeValue::Float(1.0));
            computation.attributes.push(("momentum".to_owned(), keep));
            computation.attributes.sort();
            let outputs = vec![output(0), None, None, output(3), output(4)];
            // The runtime crashes if one of the five is left out.
            let copy = Repeatable {
                original,
                outputs,
                written: vec![true; 5],
                forbidden: None,
                variant: false,
            };
            self.repeatable.insert(computation, copy);
        }
        if let (Some(true), Some(mask)) = (training, output(1)) {
            // The gradient of a dropout multiplies by the same mask and scale. Otherwise than in
            // training it would be wrong: on the CPU it scales, whatever its training_mode says.
            let [data, ratio, training] =
                [0, 1, 2].map(|i| computation.inputs.get(i).copied().flatten());
            let computation = Computation {
                domain: "com.microsoft".to_owned(),
                op_type: "DropoutGrad".to_owned(),
                attributes: Vec::new(),
                inputs: vec![data, Some(mask), ratio, training],
            };
            let outputs = vec![output(0)];
            let copy = Repeatable {
                original,
                outputs,
                written: vec![true],
                forbidden: None,
                variant: false,
            };
            self.repeatable.entry(computation).or_insert(copy);
        }
    }
}

/// An element's type and a shape, as far as they are known.
type Type = (Option<ElementType>, Option<Vec<u64>>);

/// Can tensors of these types be the same?
fn agree(one: &Type, other: &Type) -> bool {
    let elements = one.0.zip(other.0).is_none_or(|(a, b)| a == b);
    let shapes = one.1.as_ref().zip(other.1.as_ref());
    elements && shapes.is_none_or(|(a, b)| a == b)
}

/// By node: why a plain copy of it would not be accepted, if so. The graph's nodes are in a topological order;
/// `permitted` are the names of those for which the user vouches.
pub fn unrepeatable(graph: &Graph, permitted: &BTreeSet<String>) -> Vec<Option<&'static str>> {
    let values = Values::without_variants(graph, graph.order(), permitted);
    let mut why = vec![Some("it is not in the graph's order"); graph.node_count()];
    for (id, node) in graph.listed() {
        let read = |tensor: &Option<TensorId>| tensor.map(|tensor| values.of[tensor.index()]);
        let computation = Computation::of(node, node.inputs.iter().map(read).collect());
        why[id.index()] = match values.repeatable.get(&computation) {
            _ if !node.captures.is_empty() => Some("its subgraphs read outer tensors"),
            Some(known) => known.forbidden,
            // A copy of it is a barrier.
            None => None,
        };
    }
    why
}

/// `tensor`, which has a value of its own yet, is to have this one: are these of different types or shapes? Every tensor began with the
/// value of its number.
fn two_types(types: &[Type], value: ValueNumber, tensor: TensorId) -> Option<[TensorId; 2]> {
    let agreed = agree(&types[value.0 as usize], &types[tensor.index()]);
    (!agreed).then_some([TensorId(value.0), tensor])
}

/// Checks that nodes which compute the same from the same have results of the same type and shape: those of operators that
/// nobody knows, and some sizes of others, are what the file or the user says. The graph's nodes are in a topological order;
/// `permitted` are the names of those for which the user vouches.
pub fn declarations(graph: &Graph, permitted: &BTreeSet<String>) -> Result<(), Violation> {
    let values = Values::without_variants(graph, graph.order(), permitted);
    let Some(both) = values.contradiction else {
        return Ok(());
    };
    let writer = |tensor: TensorId| {
        let mut nodes = graph.order().iter().copied();
        nodes.find(|&id| graph.node(id).writes().any(|written| written == tensor))
    };
    let [first, second] = both;
    let said = |tensor: TensorId| {
        let tensor = graph.tensor(tensor);
        type_and_shape(tensor.element, &tensor.shape)
    };
    let forwards = |id: NodeId| graph.node(id).is("com.microsoft", "PassThrough");
    if writer(second).is_some_and(forwards) {
        return Err(Violation::WrongType {
            tensor: graph.tensor(second).name.clone(),
            expected: said(first),
            found: said(second),
        });
    }
    let writer = |tensor: TensorId| {
        let writer = writer(tensor);
        writer.map_or_else(String::new, |id| label(graph, id))
    };
    Err(Violation::Declarations {
        first: writer(first).into(),
        second: writer(second).into(),
        tensor: graph.tensor(first).name.as_str().into(),
        other: graph.tensor(second).name.as_str().into(),
        said: said(first).into(),
        otherwise: said(second).into(),
    })
}

/// In words.
pub(super) fn type_and_shape(element: Option<ElementType>, shape: &Option<Vec<u64>>) -> String {
    let element = element.map_or("unknown", |element| element.name());
    let shape = shape.as_ref().map(|shape| format!("{shape:?}"));
    format!("{element} {}", shape.unwrap_or_default())
}

/// Which tensors are initializers that the caller cannot replace, or results of a Constant.
pub(super) fn fixed_tensors(graph: &Graph) -> Vec<bool> {
    let of_kind = |id: TensorId| graph.tensor(id).kind == TensorKind::Initializer;
    let mut fixed: Vec<bool> = graph.tensor_ids().map(of_kind).collect();
    for input in &graph.inputs {
        fixed[input.index()] = false;
    }
    let constants = graph.nodes();
    for node in constants.filter(|node| node.is("", "Constant")) {
        for output in node.writes() {
            fixed[output.index()] = true;
        }
    }
    fixed
}

/// Which tensors lie in memory that some node updates in place.
pub(super) fn updated_tensors(graph: &Graph, order: &[NodeId]) -> Vec<bool> {
    let roots = roots(graph, order);
    let mut updated = vec![false; graph.tensor_count()];
    for &id in order {
        let node = graph.node(id);
        for position in trust::updated_inputs(node) {
            if let Some(tensor) = node.input(position) {
                updated[roots[tensor.index()].index()] = true;
            }
        }
    }
    roots.iter().map(|root| updated[root.index()]).collect()
}

/// For every tensor, the one whose memory it is, following aliases.
pub(super) fn roots(graph: &Graph, order: &[NodeId]) -> Vec<TensorId> {
    let mut roots: Vec<TensorId> = graph.tensor_ids().collect();
    for &id in order {
        let node = graph.node(id);
        for (output, input) in trust::aliases(node) {
            if let (Some(output), Some(input)) = (node.output(output), node.input(input))
                && !graph.outputs.contains(&output)
            {
                roots[output.index()] = roots[input.index()];
            }
        }
    }
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_value_tells_zeros_and_nans_apart() {
        let nan = |payload: u32| f32::from_bits(f32::NAN.to_bits() | payload);
        let text = |value: f32| exact(&AttributeValue::Floats(vec![1.0, value]));
        assert_ne!(text(0.0), text(-0.0));
        assert_ne!(text(nan(1)), text(nan(2)));
        assert_eq!(text(nan(1)), text(nan(1)));
        assert_ne!(
            exact(&AttributeValue::Float(nan(1))),
            exact(&AttributeValue::Float(nan(2)))
        );
    }

    #[test]
    fn what_computes_the_same_has_one_type_and_shape() {
        let said = |nodes: &str, permitted: &[&str]| {
            let text = format!(
                "g (float[8] x) => () <float[4] a, float[2,2] b, int64[4] c, float[4] d> {{ {nodes} }}"
            );
            let mut graph = Graph::parse(&text).unwrap();
            let permitted = permitted.iter().map(|&name| name.to_owned()).collect();
            for id in graph.tensor_ids().collect::<Vec<_>>() {
                let declared = graph.tensor(id).declared.clone();
                let sizes = declared
                    .unwrap_or_default()
                    .into_iter()
                    .map(|size| match size {
                        crate::graph::Dimension::Known(size) => size,
                        _ => 0,
                    });
                graph.tensor_mut(id).shape = Some(sizes.collect());
            }
            match declarations(&graph, &permitted) {
                Ok(()) => "fine".to_owned(),
                Err(violation) => violation.to_string(),
            }
        };
        let two = "[m] a = test.U (x) [n] b = test.U (x)";
        insta::assert_snapshot!(said(two, &["m", "n"]), @r#"U "m" and U "n" compute the same from the same inputs and attributes, but "a" is float [4] and "b" is float [2, 2]; expected one type and one shape for both"#);
        let types = "[m] a = test.U (x) [n] c = test.U (x)";
        insta::assert_snapshot!(said(types, &["m", "n"]), @r#"U "m" and U "n" compute the same from the same inputs and attributes, but "a" is float [4] and "c" is int64 [4]; expected one type and one shape for both"#);
        // What may be random may have any shape.
        assert_eq!(said(two, &["m"]), "fine");
        assert_eq!(said(two, &[]), "fine");
        let same = "[m] a = test.U (x) [n] d = test.U (x)";
        assert_eq!(said(same, &["m", "n"]), "fine");
        let attributes = "[m] a = test.U <k = 1> (x) [n] b = test.U <k = 2> (x)";
        assert_eq!(said(attributes, &["m", "n"]), "fine");
        let forwarded = "[m] a = test.U (x) [n] c = com.microsoft.PassThrough (a)";
        insta::assert_snapshot!(said(forwarded, &[]), @r#"tensor "c" is declared as int64 [4], but its value is float [4]"#);
    }
}
