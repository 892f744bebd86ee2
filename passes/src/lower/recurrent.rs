//! What the lowered recurrent layers have in common.
//!
//! A layer becomes the standard's own operator, which keeps nothing for gradients. These compute the gates of all steps again, from the
//! layer's inputs and hidden states, by a few products of large matrices: so a step takes less memory than with gates that
//! are kept, and nothing is computed twice where only gradients read them. What really goes from one step to the next is
//! done by a Scan, on products of numbers that are known before it begins; weights' gradients are products over all steps.

use super::body::{NewBody, scan};
use super::operation::{NewNode, op, op_of};
use super::pooling::zeros;
use super::site::{LoweringSite, Obstacle, attribute, case};
use crate::graph::{AttributeValue, ElementType, Node, TensorId};

/// A layer's inputs and hidden states.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) x: TensorId,
    pub(super) w: TensorId,
    pub(super) r: TensorId,
    pub(super) b: Option<TensorId>,
    pub(super) first_hidden: Option<TensorId>,
    pub(super) first_cell: Option<TensorId>,
    /// All hidden states.
    pub(super) y: TensorId,
    pub(super) element: ElementType,
    pub(super) hidden: i64,
    /// By direction: does it begin with the last step?
    pub(super) directions: Vec<bool>,
}

/// One direction of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerDirection {
    pub(super) place: usize,
    pub(super) backwards: bool,
    /// `[gates · hidden, input]`
    pub(super) w: TensorId,
    /// `[gates · hidden, hidden]`
    pub(super) r: TensorId,
    /// A row for each step and sample.
    pub(super) x_rows: TensorId,
    /// The hidden states before each step, the same.
    pub(super) before: TensorId,
    /// `[sequence, batch, hidden]`, of numbers.
    shape: TensorId,
}

impl Layer {
    /// Of a layer whose output is `y`.
    pub(super) fn of(site: &LoweringSite, node: &Node, y: TensorId) -> Result<Layer, Obstacle> {
        let input = |position| node.input(position).ok_or(Obstacle::NoInput { position });
        let (x, w, r) = (input(0)?, input(1)?, input(2)?);
        for tensor in [x, w, r] {
            if site.rank(tensor).is_ok_and(|rank| rank != 3) {
                return case(format!(
                    "where {:?} has not three dimensions",
                    site.name(tensor)
                ));
            }
        }
        let element = site.element(x)?;
        let hidden = match node.int("hidden_size") {
            Some(size) if size > 0 => size,
            _ => return attribute("hidden_size", "how large the hidden state is"),
        };
        Ok(Layer {
            x,
            w,
            r,
            b: node.input(3),
            first_hidden: node.input(5),
            first_cell: node.input(6),
            y,
            element,
            hidden,
            directions: directions(node)?,
        })
    }

    /// Of the layer of which the site's node is the gradient; where that is not in the graph, as far as the gradient reads what it read.
    pub(super) fn of_gradient(
        site: &LoweringSite,
        layer: Option<&Node>,
    ) -> Result<Layer, Obstacle> {
        const Y: usize = 6;
        let Some(layer) = layer else {
            return Layer::of(site, &site.node, site.input(Y)?);
        };
        let y = layer.output(0).ok_or(Obstacle::NoInput { position: Y })?;
        Layer::of(site, layer, y)
    }

    /// What one direction reads.
    pub(super) fn direction(&self, site: &mut LoweringSite, place: usize) -> LayerDirection {
        let backwards = self.directions[place];
        let [w, r] = [self.w, self.r].map(|weights| self.of_direction(site, weights, 0, place));
        let y = self.of_direction(site, self.y, 1, place);
        let shape = match site.numbers(self.x) {
            Some(sizes) => site.ints(&[sizes[0], sizes[1], self.hidden]),
            None => site.add(op("Shape", [y])),
        };
        let first = match self.first_hidden {
            Some(first) => self.row(site, first, place),
            None => self.zeros(site, &[1]),
        };
        let (zero, one) = (site.ints(&[0]), site.ints(&[1]));
        let before = if backwards {
            let end = site.ints(&[i64::MAX]);
            let rest = site.add(op("Slice", [y, one, end, zero]));
            op("Concat", [rest, first])
        } else {
            let last = site.ints(&[-1]);
            let rest = site.add(op("Slice", [y, zero, last, zero]));
            op("Concat", [first, rest])
        };
        let before = site.add(before.int("axis", 0));
        LayerDirection {
            place,
            backwards,
            w,
            r,
            x_rows: rows(site, self.x),
            before: site.reshaped(before, &[-1, self.hidden]),
            shape,
        }
    }

    /// The biases of one direction, of the input and of the hidden state: `[1, gates · hidden]`.
    pub(super) fn biases(
        &self,
        site: &mut LoweringSite,
        place: usize,
        gates: i64,
    ) -> Option<[TensorId; 2]> {
        let row = self.row(site, self.b?, place);
        Some(split(site, row, 1, [gates * self.hidden; 2]))
    }

    /// One direction of a tensor whose first dimension they are, which stays.
    fn row(&self, site: &mut LoweringSite, all: TensorId, place: usize) -> TensorId {
        if let [_] = self.directions[..] {
            return all;
        }
        let place = site.ints(&[place as i64]);
        site.add(op("Gather", [all, place]).int("axis", 0))
    }

    /// One direction of a tensor, without that dimension.
    pub(super) fn of_direction(
        &self,
        site: &mut LoweringSite,
        all: TensorId,
        axis: i64,
        place: usize,
    ) -> TensorId {
        if let [_] = self.directions[..] {
            let axes = site.ints(&[axis]);
            return site.add(op("Squeeze", [all, axes]));
        }
        let place = site.int(place as i64);
        site.add(op("Gather", [all, place]).int("axis", axis))
    }

    /// A state of zeros, behind dimensions of these sizes.
    fn zeros(&self, site: &mut LoweringSite, outer: &[i64]) -> TensorId {
        let outer = outer.iter().copied().map(Err);
        let list: Vec<_> = outer.chain([Ok((self.x, 1)), Err(self.hidden)]).collect();
        let shape = sizes(site, &list);
        site.add(zeros(shape, self.element))
    }

    /// One direction's part of a state, or zeros where there is none.
    pub(super) fn state(
        &self,
        site: &mut LoweringSite,
        all: Option<TensorId>,
        place: usize,
    ) -> TensorId {
        match all {
            Some(all) => self.of_direction(site, all, 0, place),
            None => self.zeros(site, &[]),
        }
    }

    pub(super) fn body(&self, site: &mut LoweringSite) -> NewBody {
        NewBody::new(&site.free_prefix("step"), self.element)
    }

    pub(super) fn one(&self, site: &mut LoweringSite) -> TensorId {
        site.number(1.0, self.element)
    }
}

impl LayerDirection {
    /// Numbers of all steps and samples, step by step.
    pub(super) fn steps(&self, site: &mut LoweringSite, numbers: TensorId) -> TensorId {
        site.add(op("Reshape", [numbers, self.shape]))
    }

    /// A Scan against the direction of the layer: first the gradients of the last states, then `sequences`.
    pub(super) fn against(
        &self,
        site: &mut LoweringSite,
        body: NewBody,
        given: (&[TensorId], &[TensorId]),
        results: &[TensorId],
    ) -> Vec<TensorId> {
        scan(site, body, given, results, !self.backwards)
    }
}

/// By direction: does it begin with the last step?
fn directions(node: &Node) -> Result<Vec<bool>, Obstacle> {
    match node.string("direction").unwrap_or("forward") {
        "forward" => Ok(vec![false]),
        "reverse" => Ok(vec![true]),
        "bidirectional" => Ok(vec![false, true]),
        other => attribute(
            "direction",
            format!("forward, reverse or bidirectional, found {other:?}"),
        ),
    }
}

/// What no kernel of the training operators does either, and what has no gradient. `lengths` is the position of that input.
pub(super) fn check(
    site: &LoweringSite,
    lengths: usize,
    activations: &[&str],
) -> Result<(), Obstacle> {
    let node = &site.node;
    if node.input(lengths).is_some() {
        return case("where sequences have lengths of their own");
    }
    if node.int("layout").unwrap_or(0) != 0 {
        return case("with the batch before the sequence");
    }
    if node.attribute("clip").is_some() {
        return case("with clipped gates");
    }
    if node.int("input_forget").unwrap_or(0) != 0 {
        return case("where the input gate is what the forget gate leaves");
    }
    if let Some(AttributeValue::Strings(names)) = node.attribute("activations") {
        let mut both = names.iter().zip(activations.iter().cycle());
        if both.any(|(name, expected)| !name.eq_ignore_ascii_case(expected.as_bytes())) {
            return case(format!("with other activations than {activations:?}"));
        }
    }
    Ok(())
}

/// The layer of which the node is the gradient, where `kept` is what that kept for it: it is in the graph, and what it kept is
/// computed again. `inputs` and `outputs` are places of what the gradient reads, and of the layer's inputs and outputs that it has to be.
pub(super) fn layer_of(
    site: &LoweringSite,
    kept: TensorId,
    inputs: &[(usize, usize)],
    outputs: &[(usize, usize)],
) -> Result<Option<Node>, Obstacle> {
    let Some(layer) = site.layer(kept).cloned() else {
        return Ok(None);
    };
    let node = &site.node;
    let reads = |&(place, of): &(usize, usize)| node.input(place) == layer.input(of);
    let gets = |&(place, of): &(usize, usize)| node.input(place) == layer.output(of);
    let attribute = |node: &Node, name| node.int(name).unwrap_or(0);
    let alike = directions(node).ok() == directions(&layer).ok()
        && ["hidden_size", "linear_before_reset"]
            .into_iter()
            .all(|name| attribute(node, name) == attribute(&layer, name));
    match alike && inputs.iter().all(reads) && outputs.iter().all(gets) {
        true => Ok(Some(layer)),
        false => case("with other inputs or attributes than the layer whose gates it reads"),
    }
}

/// The standard's own operator, with the layer's inputs and its first outputs.
pub(super) fn put_layer(site: &mut LoweringSite, op_type: &'static str, states: usize) {
    let mut inputs = site.node.inputs.clone();
    inputs.truncate(5 + states);
    while inputs.last() == Some(&None) {
        inputs.pop();
    }
    let mut layer = op_of(op_type, inputs);
    for name in ["direction", "hidden_size", "linear_before_reset"] {
        if let Some(value) = site.node.attribute(name) {
            layer = layer.with(name, value.clone());
        }
    }
    let mut outputs = site.node.outputs.clone();
    outputs.truncate(1 + states);
    site.put_all(layer, outputs);
}

/// Parts of these sizes.
pub(super) fn split<const PARTS: usize>(
    site: &mut LoweringSite,
    whole: TensorId,
    axis: i64,
    sizes: [i64; PARTS],
) -> [TensorId; PARTS] {
    let lengths = site.ints(&sizes);
    let parts = sizes.map(|_| site.new_tensor("Split"));
    let split = op("Split", [whole, lengths]).int("axis", axis);
    site.put_all(split, parts.map(Some).to_vec());
    parts
}

/// Steps and samples as rows.
fn rows(site: &mut LoweringSite, steps: TensorId) -> TensorId {
    let shape = sizes(site, &[Err(-1), Ok((steps, 2))]);
    site.add(op("Reshape", [steps, shape]))
}

/// A list of sizes: of dimensions, and numbers.
fn sizes(site: &mut LoweringSite, list: &[Result<(TensorId, usize), i64>]) -> TensorId {
    let known = list.iter().map(|size| match *size {
        Ok((id, axis)) => site.int_size(id, axis),
        Err(number) => Some(number),
    });
    if let Some(known) = known.collect::<Option<Vec<i64>>>() {
        return site.ints(&known);
    }
    let parts = list.iter().map(|size| match *size {
        Ok((id, axis)) => Some(site.size_of(id, axis)),
        Err(number) => Some(site.ints(&[number])),
    });
    let parts = parts.collect();
    site.add(op_of("Concat", parts).int("axis", 0))
}

/// `rows · weightsᵀ + added`
pub(super) fn product(rows: TensorId, weights: TensorId, added: Option<TensorId>) -> NewNode {
    let inputs = [Some(rows), Some(weights)].into_iter();
    op_of("Gemm", inputs.chain(added.map(Some)).collect()).int("transB", 1)
}

/// All directions' gradients of weights, of each direction's parts one below the other: what all rows add to them, `gradientsᵀ · rows`.
fn put_weights(site: &mut LoweringSite, factors: Vec<Vec<(TensorId, TensorId)>>, output: TensorId) {
    let mut all = Vec::with_capacity(factors.len());
    for parts in factors {
        let products = parts
            .into_iter()
            .map(|(gradients, rows)| site.add(op("Gemm", [gradients, rows]).int("transA", 1)));
        let products = products.collect();
        all.push(site.joined(products, 0));
    }
    put_stacked(site, &all, 0, output);
}

/// The sum of all steps and samples, as a row: first over the steps, since one sum of very many numbers loses digits.
pub(super) fn sum_of_steps(site: &mut LoweringSite, steps: TensorId) -> TensorId {
    let of_samples = site.reduced("ReduceSum", steps, &[0], false);
    let of_samples = site.add(of_samples);
    let sum = site.reduced("ReduceSum", of_samples, &[0], true);
    site.add(sum)
}

/// All directions' parts of an output, along a new axis.
pub(super) fn put_stacked(
    site: &mut LoweringSite,
    parts: &[TensorId],
    axis: i64,
    output: TensorId,
) {
    let axes = site.ints(&[axis]);
    if let &[part] = parts {
        site.put(op("Unsqueeze", [part, axes]), output);
        return;
    }
    let parts = parts
        .iter()
        .map(|&part| Some(site.add(op("Unsqueeze", [part, axes]))))
        .collect();
    site.put(op_of("Concat", parts).int("axis", axis), output);
}

/// All directions' rows, one below the other.
pub(super) fn put_rows(site: &mut LoweringSite, parts: Vec<Vec<TensorId>>, output: TensorId) {
    let last = parts.len() == 1;
    let mut all = Vec::with_capacity(parts.len());
    for row in parts {
        let row = op_of("Concat", row.into_iter().map(Some).collect()).int("axis", 1);
        if last {
            site.put(row, output);
            return;
        }
        all.push(Some(site.add(row)));
    }
    site.put(op_of("Concat", all).int("axis", 0), output);
}

/// The gradients of the layer's input, of its weights and of those of its states, by what they are products of; see [`put_weights`].
pub(super) fn put_products(
    site: &mut LoweringSite,
    of_x: Vec<NewNode>,
    of_w: Vec<Vec<(TensorId, TensorId)>>,
    of_r: Vec<Vec<(TensorId, TensorId)>>,
) {
    if let Some(dx) = site.output(0) {
        put_sum(site, of_x, dx);
    }
    for (position, factors) in [(1, of_w), (2, of_r)] {
        if let Some(output) = site.output(position) {
            put_weights(site, factors, output);
        }
    }
}

/// The sum of products.
fn put_sum(site: &mut LoweringSite, products: Vec<NewNode>, output: TensorId) {
    let last = products.len().saturating_sub(1);
    let mut sum: Option<TensorId> = None;
    for (place, product) in products.into_iter().enumerate() {
        let next = match sum {
            None => product,
            Some(sum) => {
                let product = site.add(product);
                op("Add", [sum, product])
            }
        };
        if place == last {
            site.put(next, output);
        } else {
            sum = Some(site.add(next));
        }
    }
}
