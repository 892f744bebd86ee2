//! Where a node is replaced: what is known of it, and the nodes that are put in its place.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use thiserror::Error;

use super::facts::Facts;
use super::operation::{NewNode, op, op_of};
use crate::graph::{
    Constant, Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses,
};

/// The domain of the operators beyond the standard that every build of the runtime has.
pub(super) const CONTRIB: &str = "com.microsoft";

/// What new nodes and tensors that stand for no single operator are called.
const PREFIX: &str = "ckpt-opt/lower";

/// Why an operator cannot be written in others where it stands.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)]
pub enum Obstacle {
    #[error("input {position} is missing")]
    NoInput { position: usize },
    #[error(
        "nothing says how many dimensions {tensor:?} has; expected it in the file's value_info"
    )]
    Rank { tensor: String },
    #[error("nothing says of which type {tensor:?} is; expected it in the file's value_info")]
    Element { tensor: String },
    #[error("attribute {name:?}: expected {expected}")]
    Attribute {
        name: &'static str,
        expected: String,
    },
    #[error("nothing says how large dimension {axis} of {tensor:?} is; expected a number")]
    Size { tensor: String, axis: usize },
    #[error("it cannot be written in standard operators {when}")]
    Case { when: String },
    #[error(
        "the file asks for operator set {found} of ai.onnx, its form needs {needed}: export it with that"
    )]
    Opset { found: i64, needed: i64 },
}

impl Obstacle {
    /// Is it that the file says too little of a tensor?
    pub(super) fn is_unknown(&self) -> bool {
        matches!(
            self,
            Obstacle::Rank { .. } | Obstacle::Element { .. } | Obstacle::Size { .. }
        )
    }
}

/// A constant's type, shape and bits.
type ConstantKey = (i32, Vec<u64>, Vec<u64>);

/// What all updates of a graph's weights read.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepInputs {
    pub(super) learning_rate: TensorId,
    /// 1 − αᵗ and 1 − βᵗ of AdamW, where they are wanted.
    pub(super) corrections: Option<[TensorId; 2]>,
}

/// What all lowerings of a graph have in common.
pub(super) struct Shared {
    pub(super) opset: i64,
    /// Constants by their contents: small numbers are needed again and again.
    constants: BTreeMap<ConstantKey, TensorId>,
    listed: Vec<NodeId>,
    names: HashSet<String>,
    /// The names of the graph's first tensors.
    tensors: BTreeSet<String>,
    /// Output and buffer.
    pub(super) accumulated: Vec<(String, String)>,
    /// What the updates of weights read, once there is one.
    pub(super) step: Option<StepInputs>,
    /// Buffers and outputs that went with accumulations.
    pub(super) dropped: BTreeSet<TensorId>,
    /// Recurrent layers as they were, by what they kept for their gradients.
    layers: BTreeMap<TensorId, Node>,
    kept: BTreeSet<TensorId>,
    /// Raising the operator set changes nothing of the graph's own nodes.
    can_rise: bool,
}

impl Shared {
    pub(super) fn new(graph: &Graph) -> Shared {
        let nodes = || graph.node_ids().map(|id| graph.node(id));
        let opset = graph.opset().unwrap_or(0);
        Shared {
            opset,
            constants: BTreeMap::new(),
            listed: Vec::new(),
            names: nodes().map(|node| node.name.clone()).collect(),
            tensors: BTreeSet::new(),
            accumulated: Vec::new(),
            step: None,
            dropped: BTreeSet::new(),
            layers: BTreeMap::new(),
            kept: BTreeSet::new(),
            // What a newer set made of operators of the same form: running statistics in 14, coordinates in 16.
            can_rise: nodes().all(|node| {
                let changes =
                    node.is("", "RoiAlign") || node.is("", "BatchNormalization") && opset < 14;
                !changes
            }),
        }
    }

    /// The nodes of all constants, in the sequence in which they were first needed.
    pub(super) fn constants(&self) -> Vec<NodeId> {
        self.listed.clone()
    }

    /// Integers of this shape: none or one dimension.
    pub(super) fn integers(
        &mut self,
        graph: &mut Graph,
        shape: Vec<u64>,
        values: &[i64],
    ) -> TensorId {
        let bits = values.iter().map(|value| *value as u64).collect();
        let constant = Constant::Ints(values.to_vec());
        self.constant(graph, ElementType::Int64, shape, bits, constant)
    }

    fn constant(
        &mut self,
        graph: &mut Graph,
        element: ElementType,
        shape: Vec<u64>,
        bits: Vec<u64>,
        constant: Constant,
    ) -> TensorId {
        let key = (element as i32, shape, bits);
        if let Some(id) = self.constants.get(&key) {
            return *id;
        }
        let wish = format!("{PREFIX}/constant_{}", self.constants.len());
        let name = graph.free_tensor_name(&wish);
        let id = graph.add_tensor(Tensor {
            element: Some(element),
            shape: Some(key.1.clone()),
            constant: Some(constant.clone()),
            ..Tensor::new(name.clone(), TensorKind::Value)
        });
        let name = self.free_name(&name);
        let node = op("Constant", []).holding(element, key.1.clone(), constant);
        let node = graph.add_node(node.named(name, vec![Some(id)]));
        self.listed.push(node);
        self.constants.insert(key, id);
        id
    }

    /// Says that something is computed in the step on purpose, though it were known before.
    pub(super) fn keep(&mut self, id: TensorId) {
        self.kept.insert(id);
    }

    pub(super) fn is_kept(&self, id: TensorId) -> bool {
        self.kept.contains(&id)
    }

    pub(super) fn free_name(&mut self, wish: &str) -> String {
        let mut name = wish.to_owned();
        let mut number = 1u64;
        while !self.names.insert(name.clone()) {
            name = format!("{wish}_{number}");
            number += 1;
        }
        name
    }
}

/// A node that is replaced.
pub(super) struct LoweringSite<'a> {
    graph: &'a mut Graph,
    uses: &'a Uses,
    facts: &'a Facts,
    shared: &'a mut Shared,
    id: NodeId,
    /// As it was.
    pub(super) node: Node,
    base: String,
    made: Vec<Node>,
}

impl<'a> LoweringSite<'a> {
    pub(super) fn new(
        graph: &'a mut Graph,
        uses: &'a Uses,
        facts: &'a Facts,
        shared: &'a mut Shared,
        id: NodeId,
    ) -> LoweringSite<'a> {
        let node = graph.node(id).clone();
        let written = node.writes().next();
        let base = match (node.name.is_empty(), written) {
            (false, _) => node.name.clone(),
            (true, Some(output)) => graph.tensor(output).name.clone(),
            (true, None) => PREFIX.to_owned(),
        };
        LoweringSite {
            graph,
            uses,
            facts,
            shared,
            id,
            node,
            base,
            made: Vec::new(),
        }
    }

    /// Puts the nodes into the graph, the last of them under the number of the replaced one.
    pub(super) fn finish(self) -> Result<Vec<NodeId>, Obstacle> {
        let LoweringSite {
            graph,
            id,
            mut made,
            ..
        } = self;
        let Some(last) = made.pop() else {
            return Err(Obstacle::Case {
                when: "where nothing reads what it computes".to_owned(),
            });
        };
        let mut ids: Vec<NodeId> = made.into_iter().map(|node| graph.add_node(node)).collect();
        *graph.node_mut(id) = last;
        ids.push(id);
        Ok(ids)
    }

    pub(super) fn input(&self, position: usize) -> Result<TensorId, Obstacle> {
        self.node
            .input(position)
            .ok_or(Obstacle::NoInput { position })
    }

    pub(super) fn inputs<const N: usize>(&self) -> Result<[TensorId; N], Obstacle> {
        let mut found = [TensorId(0); N];
        for (position, id) in found.iter_mut().enumerate() {
            *id = self.input(position)?;
        }
        Ok(found)
    }

    /// The output at `position`, if somebody reads it.
    pub(super) fn output(&self, position: usize) -> Option<TensorId> {
        let id = self.node.output(position)?;
        let is_read = !self.uses.readers(id).is_empty() || self.graph.outputs.contains(&id);
        is_read.then_some(id)
    }

    /// The first output, read or not: there has to be one.
    pub(super) fn result(&self) -> Result<TensorId, Obstacle> {
        self.node.output(0).ok_or(Obstacle::Case {
            when: "without its first output".to_owned(),
        })
    }

    pub(super) fn producer(&self, id: TensorId) -> Option<&Node> {
        self.uses
            .producer(id)
            // One that was replaced already says nothing of what it was.
            .map(|producer| self.graph.node(producer))
    }

    pub(super) fn opset(&self) -> i64 {
        self.shared.opset
    }

    /// The file has to ask for this operator set, or a newer one.
    pub(super) fn needs_opset(&mut self, needed: i64) -> Result<(), Obstacle> {
        if self.shared.opset < needed {
            if !self.shared.can_rise {
                return Err(Obstacle::Opset {
                    found: self.shared.opset,
                    needed,
                });
            }
            self.shared.opset = needed;
        }
        Ok(())
    }

    pub(super) fn rank(&self, id: TensorId) -> Result<usize, Obstacle> {
        self.facts
            .sizes(id)
            .map(Vec::len)
            .ok_or_else(|| Obstacle::Rank {
                tensor: self.name(id).to_owned(),
            })
    }

    pub(super) fn size(&self, id: TensorId, axis: usize) -> Option<u64> {
        *self.facts.sizes(id)?.get(axis)?
    }

    /// The same as attributes and lists of sizes hold it.
    pub(super) fn int_size(&self, id: TensorId, axis: usize) -> Option<i64> {
        i64::try_from(self.size(id, axis)?).ok()
    }

    /// The same where there is no way without.
    pub(super) fn known_size(&self, id: TensorId, axis: usize) -> Result<i64, Obstacle> {
        let size = self.int_size(id, axis);
        size.ok_or_else(|| self.unknown_size(id, axis))
    }

    /// How many numbers each channel of an image has, if that is known.
    pub(super) fn positions(&self, images: TensorId) -> Option<u64> {
        let mut sizes = self.facts.sizes(images)?.get(2..)?.iter();
        sizes.try_fold(1u64, |count, size| Some(count.saturating_mul((*size)?)))
    }

    pub(super) fn unknown_size(&self, id: TensorId, axis: usize) -> Obstacle {
        Obstacle::Size {
            tensor: self.name(id).to_owned(),
            axis,
        }
    }

    /// The sizes as numbers, if all are.
    pub(super) fn numbers(&self, id: TensorId) -> Option<Vec<i64>> {
        let sizes = self.facts.sizes(id)?.iter();
        sizes.map(|size| i64::try_from((*size)?).ok()).collect()
    }

    pub(super) fn element(&self, id: TensorId) -> Result<ElementType, Obstacle> {
        self.facts.element(id).ok_or_else(|| Obstacle::Element {
            tensor: self.name(id).to_owned(),
        })
    }

    /// The contents of a constant.
    pub(super) fn constant(&self, id: TensorId) -> Option<&Constant> {
        self.graph.tensor(id).constant.as_ref()
    }

    /// The contents of an integer constant.
    pub(super) fn constant_ints(&self, id: TensorId) -> Option<Vec<i64>> {
        Some(self.constant(id)?.ints()?.to_vec())
    }

    pub(super) fn name(&self, id: TensorId) -> &str {
        &self.graph.tensor(id).name
    }

    /// The attribute as a position among so many.
    pub(super) fn axis(&self, default: i64, rank: usize) -> Result<usize, Obstacle> {
        let axis = self.node.int("axis").unwrap_or(default);
        let rank = rank as i64;
        let place = if axis < 0 { axis + rank } else { axis };
        match (0..rank.max(1)).contains(&place) {
            true => Ok(place as usize),
            false => attribute("axis", format!("one of {rank} dimensions, found {axis}")),
        }
    }

    /// Adds a node with a new tensor.
    pub(super) fn add(&mut self, operation: NewNode) -> TensorId {
        let output = self.new_tensor(operation.op_type);
        self.put(operation, output);
        output
    }

    /// Adds a node that writes `output`.
    pub(super) fn put(&mut self, operation: NewNode, output: TensorId) {
        self.put_all(operation, vec![Some(output)]);
    }

    /// Adds a node that writes `output`, or a new tensor where there is none.
    pub(super) fn put_or_add(&mut self, operation: NewNode, output: Option<TensorId>) -> TensorId {
        match output {
            Some(output) => {
                self.put(operation, output);
                output
            }
            None => self.add(operation),
        }
    }

    pub(super) fn put_all(&mut self, operation: NewNode, outputs: Vec<Option<TensorId>>) {
        let wish = format!("{}/{}", self.base, operation.op_type);
        let name = self.shared.free_name(&wish);
        self.made.push(operation.named(name, outputs));
    }

    pub(super) fn new_tensor(&mut self, of: &str) -> TensorId {
        let wish = format!("{}/{of}:0", self.base);
        let name = self.graph.free_tensor_name(&wish);
        self.graph.add_tensor(Tensor::new(name, TensorKind::Value))
    }

    /// Says that `new`, of which nothing is known, has the sizes of `of` and so many dimensions: what is computed of `new` with these sizes takes its
    /// memory over then, which the runtime allows where sizes have equal names (measured in all releases that are planned for, with and without reuse).
    pub(super) fn declare_alike(
        &mut self,
        new: TensorId,
        of: TensorId,
        rank: usize,
        element: ElementType,
    ) {
        let known = self.facts.sizes(of);
        let told = self.graph.tensor(of).declared.clone();
        let told = told.filter(|told| {
            let are_sizes = told.len() == rank && !told.contains(&Dimension::Unknown);
            let agrees = known.is_none_or(|known| {
                let mut both = told.iter().zip(known);
                both.all(|(told, known)| told.number().zip(*known).is_none_or(|(a, b)| a == b))
            });
            are_sizes && agrees
        });
        let declared = told.unwrap_or_else(|| {
            let name = |_| Dimension::Symbol(self.shared.free_name(&format!("{PREFIX}/size")));
            (0..rank).map(name).collect()
        });
        let tensor = self.graph.tensor_mut(new);
        tensor.element = Some(element);
        tensor.declared = Some(declared);
    }

    /// Adds a node whose result is computed in the step on purpose: it waits for others.
    pub(super) fn add_kept(&mut self, operation: NewNode) -> TensorId {
        let output = self.add(operation);
        self.shared.keep(output);
        output
    }

    /// What no name begins with yet.
    pub(super) fn free_prefix(&mut self, of: &str) -> String {
        let wish = format!("{}/{of}", self.base);
        let names = &mut self.shared.tensors;
        let new = (names.len()..self.graph.tensor_count()).map(|index| TensorId(index as u32));
        names.extend(new.map(|id| self.graph.tensor(id).name.clone()));
        loop {
            let prefix = self.shared.free_name(&wish);
            let mut behind = self.shared.tensors.range(prefix.clone()..);
            if !behind.next().is_some_and(|name| name.starts_with(&prefix)) {
                return prefix;
            }
        }
    }

    /// A list of integers.
    pub(super) fn ints(&mut self, values: &[i64]) -> TensorId {
        let shape = vec![values.len() as u64];
        self.integers(shape, values)
    }

    /// A list of integers as an output.
    pub(super) fn put_ints(&mut self, values: &[i64], output: TensorId) {
        let (shape, values) = (vec![values.len() as u64], Constant::Ints(values.to_vec()));
        let constant = op("Constant", []).holding(ElementType::Int64, shape, values);
        self.put(constant, output);
    }

    /// One integer.
    pub(super) fn int(&mut self, value: i64) -> TensorId {
        self.integers(Vec::new(), &[value])
    }

    fn integers(&mut self, shape: Vec<u64>, values: &[i64]) -> TensorId {
        self.shared.integers(self.graph, shape, values)
    }

    /// One number of a type.
    pub(super) fn number(&mut self, value: f64, element: ElementType) -> TensorId {
        self.numbers_of(Vec::new(), &[value], element)
    }

    /// Numbers of a type.
    pub(super) fn numbers_of(
        &mut self,
        shape: Vec<u64>,
        values: &[f64],
        element: ElementType,
    ) -> TensorId {
        let stored = match element {
            ElementType::Double => ElementType::Double,
            _ => ElementType::Float,
        };
        let bits = values.iter().map(|value| value.to_bits()).collect();
        let constant = Constant::Floats(values.to_vec());
        let number = self
            .shared
            .constant(self.graph, stored, shape, bits, constant);
        self.as_type(number, stored, element)
    }

    /// `id` as another type; itself if it is of that type.
    pub(super) fn as_type(&mut self, id: TensorId, from: ElementType, to: ElementType) -> TensorId {
        match from == to {
            true => id,
            false => self.add(cast(id, to)),
        }
    }

    /// `id` as another type, whichever it is of.
    pub(super) fn converted(
        &mut self,
        id: TensorId,
        to: ElementType,
    ) -> Result<TensorId, Obstacle> {
        let from = self.element(id)?;
        Ok(self.as_type(id, from, to))
    }

    /// Adds a node that writes `output` in another type than it computes in.
    pub(super) fn put_as(
        &mut self,
        operation: NewNode,
        from: ElementType,
        to: ElementType,
        output: TensorId,
    ) {
        if from == to {
            self.put(operation, output);
        } else {
            let computed = self.add(operation);
            self.put(cast(computed, to), output);
        }
    }

    /// A reduction, whose axes are an attribute or an input.
    pub(super) fn reduced(
        &mut self,
        op_type: &'static str,
        data: TensorId,
        axes: &[i64],
        keep: bool,
    ) -> NewNode {
        let since = if op_type == "ReduceSum" { 13 } else { 18 };
        let keep = i64::from(keep);
        if self.opset() >= since {
            let axes = self.ints(axes);
            op(op_type, [data, axes]).int("keepdims", keep)
        } else {
            // Whoever raises the operator set stays below where this changes.
            op(op_type, [data]).ints("axes", axes).int("keepdims", keep)
        }
    }

    /// A reduction to one number for each channel: along the axes of each image, then along the images. At once, axes that stay would
    /// stand between axes that go, which the CUDA provider leaves to cuDNN: seven times as long, and as much memory again as is
    /// reduced (measured in 1.31.1 on an H100); on the CPU both take as long.
    pub(super) fn reduced_to_channels(
        &mut self,
        op_type: &'static str,
        data: TensorId,
        rank: usize,
    ) -> NewNode {
        let axes: Vec<i64> = (2..rank as i64).collect();
        let of_images = match axes.is_empty() {
            true => data,
            false => {
                let reduced = self.reduced(op_type, data, &axes, false);
                self.add(reduced)
            }
        };
        self.reduced(op_type, of_images, &[0], false)
    }

    /// Another shape of the same numbers; 0 and -1 as the standard has them.
    pub(super) fn reshaped(&mut self, data: TensorId, shape: &[i64]) -> TensorId {
        let shape = self.ints(shape);
        self.add(op("Reshape", [data, shape]))
    }

    /// One behind the other.
    pub(super) fn joined(&mut self, parts: Vec<TensorId>, axis: i64) -> TensorId {
        match parts[..] {
            [one] => one,
            _ => self.add(op_of("Concat", parts.into_iter().map(Some).collect()).int("axis", axis)),
        }
    }

    /// The size of one dimension, as a list of one integer.
    pub(super) fn size_of(&mut self, id: TensorId, axis: usize) -> TensorId {
        match self.int_size(id, axis) {
            Some(size) => self.ints(&[size]),
            None => {
                let shape = self.add(op("Shape", [id]));
                let axis = self.ints(&[axis as i64]);
                self.add(op("Gather", [shape, axis]).int("axis", 0))
            }
        }
    }

    /// The product of some dimensions as a number of a type.
    pub(super) fn count_of(
        &mut self,
        id: TensorId,
        axes: &[usize],
        element: ElementType,
    ) -> TensorId {
        let known: Option<u64> = axes
            .iter()
            .try_fold(1u64, |count, &axis| count.checked_mul(self.size(id, axis)?));
        if let Some(known) = known {
            return self.number(known as f64, element);
        }
        let shape = self.add(op("Shape", [id]));
        let axes: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
        let axes = self.ints(&axes);
        let sizes = self.add(op("Gather", [shape, axes]).int("axis", 0));
        let product = self.reduced("ReduceProd", sizes, &[0], false);
        let product = self.add(product);
        self.add(cast(product, element))
    }

    pub(super) fn tensor_named(&self, name: &str) -> Option<TensorId> {
        self.graph.tensor_named(name)
    }

    pub(super) fn is_output(&self, id: TensorId) -> bool {
        self.graph.outputs.contains(&id)
    }

    /// The nodes that read it, those before this one as they are now.
    pub(super) fn readers(&self, id: TensorId) -> impl Iterator<Item = &Node> {
        self.uses
            .readers(id)
            .iter()
            .map(|&reader| self.graph.node(reader))
    }

    pub(super) fn is_input(&self, id: TensorId) -> bool {
        self.graph.tensor(id).kind == TensorKind::Input
    }

    /// An input that the graph did not have.
    pub(super) fn new_input(
        &mut self,
        wish: &str,
        element: ElementType,
        sizes: &[i64],
    ) -> TensorId {
        let known = |&size: &i64| Dimension::Known(size.unsigned_abs());
        let input = Tensor {
            element: Some(element),
            declared: Some(sizes.iter().map(known).collect()),
            ..Tensor::new(self.graph.free_tensor_name(wish), TensorKind::Input)
        };
        let input = self.graph.add_tensor(input);
        self.graph.inputs.push(input);
        input
    }

    /// An output that the graph did not have, to be written over an input that is like it.
    pub(super) fn new_output(&mut self, wish: &str, over: TensorId) -> TensorId {
        let old = self.graph.tensor(over);
        let output = Tensor {
            element: old.element,
            declared: old.declared.clone(),
            overwrites: Some(over),
            ..Tensor::new(self.graph.free_tensor_name(wish), TensorKind::Value)
        };
        let output = self.graph.add_tensor(output);
        self.graph.outputs.push(output);
        output
    }

    pub(super) fn step_inputs(&self) -> Option<StepInputs> {
        self.shared.step
    }

    pub(super) fn set_step_inputs(&mut self, inputs: StepInputs) {
        self.shared.step = Some(inputs);
    }

    /// Neither what the node reads is fed for it any more, nor is there what it writes.
    pub(super) fn drops_interface(&mut self) {
        let node = &self.node;
        self.shared
            .dropped
            .extend(node.reads().chain(node.writes()));
    }

    /// Keeps the node as it was, for the gradient that reads `kept` of it.
    pub(super) fn keep_layer(&mut self, kept: TensorId) {
        self.shared.layers.insert(kept, self.node.clone());
    }

    /// The node that wrote `kept`, as it was.
    pub(super) fn layer(&self, kept: TensorId) -> Option<&Node> {
        self.shared.layers.get(&kept)
    }

    /// Do others read the output at `position` than gradients of this operator that also read `kept`, and the output at this
    /// place of their inputs alone? Or does the caller?
    pub(super) fn is_read_beside(
        &self,
        position: usize,
        gradient: &str,
        (kept, place): (TensorId, usize),
    ) -> bool {
        let Some(id) = self.output(position) else {
            return false;
        };
        let is_gradient = |&reader: &NodeId| {
            let node = self.graph.node(reader);
            let places = node.inputs.iter().enumerate();
            node.is(CONTRIB, gradient)
                && node.reads().any(|read| read == kept)
                && places
                    .filter(|(_, read)| **read == Some(id))
                    .all(|(at, _)| at == place)
        };
        self.graph.outputs.contains(&id) || !self.uses.readers(id).iter().all(is_gradient)
    }

    /// Says that an output has the new value of a buffer.
    pub(super) fn accumulates(&mut self, output: TensorId, buffer: TensorId) {
        let name = |id: TensorId| self.graph.tensor(id).name.clone();
        let pair = (name(output), name(buffer));
        let old = self.graph.tensor(buffer);
        let known = old.shape.as_deref().map(Dimension::all_known);
        let (element, declared) = (old.element, old.declared.clone().or(known));
        let tensor = self.graph.tensor_mut(output);
        tensor.element = element;
        tensor.declared = declared;
        tensor.shape = None;
        self.shared.accumulated.push(pair);
    }
}

/// The same numbers as another type.
pub(super) fn cast(id: TensorId, to: ElementType) -> NewNode {
    op("Cast", [id]).int("to", to as i64)
}

/// An error that says what an attribute has to be.
pub(super) fn attribute<T>(name: &'static str, expected: impl Into<String>) -> Result<T, Obstacle> {
    let expected = expected.into();
    Err(Obstacle::Attribute { name, expected })
}

/// An error that says when something does not work.
pub(super) fn case<T>(when: impl Into<String>) -> Result<T, Obstacle> {
    Err(Obstacle::Case { when: when.into() })
}
