//! Gradients of large tensors, slice by slice.

use std::collections::{BTreeMap, BTreeSet};

use super::super::values::{Computation, ValueNumber, Values, equal_parts};
use super::activation::Relus;
use super::normalization::Normalizations;
use super::{Attributes, Rules, computation};
use crate::graph::{AttributeValue, ElementType, Graph, NodeId, TensorId};

/// Into how many slices a graph may have taken gradients apart: as many as it puts together of results of such
/// operators. It only says what to look for.
pub(in crate::verify) fn counts(graph: &Graph) -> BTreeSet<u64> {
    let mut pieces = BTreeSet::new();
    for node in graph.nodes() {
        let known = ["ReluGrad", "LeakyReluGrad", "BatchNormalizationGrad"];
        if node.domain == "com.microsoft" && known.contains(&node.op_type.as_str()) {
            pieces.extend(node.output(0));
        }
    }
    let nodes = graph.nodes();
    let joins = nodes.filter(|node| node.is("", "Concat"));
    let joins = joins.filter(|node| node.reads().all(|read| pieces.contains(&read)));
    joins.map(|node| node.inputs.len() as u64).collect()
}

/// Convolutions, by what they write.
pub(super) type ConvolutionsByResult = BTreeMap<ValueNumber, NodeId>;

pub(super) fn convolutions(
    values: &Values,
    graph: &Graph,
    order: &[NodeId],
    updated: &[bool],
) -> ConvolutionsByResult {
    let written = |&id: &NodeId| {
        let node = graph.node(id);
        let steady = !node
            .reads()
            .chain(node.writes())
            .any(|tensor| updated[tensor.index()]);
        let y = node.output(0).filter(|_| node.is("", "Conv") && steady)?;
        Some((values.of[y.index()], id))
    };
    order.iter().filter_map(written).collect()
}

/// What all rules below share: the axis that is cut, and where.
struct AxisCut {
    axis: usize,
    count: u64,
    /// How much of the axis each slice but the last takes.
    step: u64,
    size: u64,
}

impl AxisCut {
    fn taken(&self, number: u64) -> u64 {
        self.step.min(self.size - number * self.step)
    }
}

impl Rules<'_> {
    /// Channels are normalized apart from each other, and a Relu's gradient is that of each element alone.
    pub(super) fn relu_gradient_by_channels(
        &mut self,
        relus: &Relus,
        normalizations: &Normalizations,
        updated: &[bool],
        count: u64,
    ) -> Option<()> {
        let (dy, dx) = (self.node.input(0)?, self.node.output(0)?);
        let normalization = self.that_writes(normalizations, relus)?;
        let all = self.normalized(normalization, updated)?;
        let cut = self.channels(all.x, count)?;
        if !self.alike(dy, all.x) || !self.alike(dx, all.x) {
            return None;
        }
        let rank = self.graph.tensor(all.x).shape.as_ref()?.len();
        let vector = |channels: u64| {
            let mut dims = vec![1; rank - 1];
            dims[0] = channels;
            dims
        };
        let vectors = [all.factor, all.shift].map(|all| {
            let all = self.reshaped(all, vector(cut.size));
            self.equal_slices(all, 0, count, vector(cut.step))
        });
        let [Some(factors), Some(shifts)] = vectors else {
            return None;
        };
        let gradients = self.value(dy);
        let gradients = self.equal_slices(gradients, 1, count, self.cut(dy, &cut, 0)?)?;
        let mut dxs = Vec::new();
        for number in 0..count {
            let at = number as usize;
            let shape = self.cut(all.x, &cut, number)?;
            let x = self.slice(all.x, &cut, number)?;
            let float = ElementType::Float;
            let inputs = vec![Some(x), Some(factors[at])];
            let scaled = self.define_of(("", "Mul"), vec![], inputs, float, shape.clone());
            let inputs = vec![Some(scaled), Some(shifts[at])];
            let y = self.define_of(("", "Add"), vec![], inputs, float, shape.clone());
            dxs.push(Some(self.gradient_of_slice(gradients[at], y, shape)));
        }
        self.equate("", "Concat", axis(1), dxs, dx)
    }

    /// The gradient of a batch normalization is that of each of its channels, whose sums are added up in the same
    /// sequence where slices are aligned like the whole: where a channel of an image takes a multiple of 64 bytes.
    pub(super) fn normalization_gradient_by_channels(&mut self, count: u64) -> Option<()> {
        let [dy, x, scale, mean, inverse] = self.node.first_inputs()?;
        let [dx, dscale, dbias] = self.node.first_outputs()?;
        let cut = self.channels(x, count)?;
        let vectors = [scale, mean, inverse];
        let is_vector = |tensor: &TensorId| {
            let tensor = self.graph.tensor(*tensor);
            tensor.shape == Some(vec![cut.size]) && tensor.element == Some(ElementType::Float)
        };
        let fits = self.alike(dy, x)
            && self.alike(dx, x)
            && vectors.iter().chain([&dscale, &dbias]).all(is_vector);
        if !fits || self.node.inputs.len() != 5 {
            return None;
        }
        let each = vec![cut.step];
        let vectors = vectors.map(|vector| {
            let vector = self.value(vector);
            self.equal_slices(vector, 0, count, each.clone())
        });
        let [Some(scale), Some(mean), Some(inverse)] = vectors else {
            return None;
        };
        let gradients = self.value(dy);
        let gradients = self.equal_slices(gradients, 1, count, self.cut(dy, &cut, 0)?)?;
        let mut results = [Vec::new(), Vec::new(), Vec::new()];
        for number in 0..count {
            let at = number as usize;
            let x = self.slice(x, &cut, number)?;
            let vectors = [&scale, &mean, &inverse].map(|all| Some(all[at]));
            let inputs = [vec![Some(gradients[at]), Some(x)], vectors.to_vec()].concat();
            let shapes = [self.cut(dx, &cut, number)?, each.clone(), each.clone()];
            let float = Some(ElementType::Float);
            let written = shapes.map(|shape| Some(self.values.fresh(float, Some(shape))));
            let slice = Computation::of(self.node, inputs);
            self.insert_all(slice, written.to_vec());
            for (all, one) in results.iter_mut().zip(written) {
                all.push(one);
            }
        }
        let [dxs, dscales, dbiases] = results;
        self.equate("", "Concat", axis(0), dscales, dscale);
        self.equate("", "Concat", axis(0), dbiases, dbias);
        self.equate("", "Concat", axis(1), dxs, dx)
    }

    /// A convolution computes each image apart from the others.
    pub(super) fn relu_gradient_by_images(
        &mut self,
        relus: &Relus,
        convolutions: &ConvolutionsByResult,
        count: u64,
    ) -> Option<()> {
        let (dy, dx) = (self.node.input(0)?, self.node.output(0)?);
        let convolution = self.graph.node(self.that_writes(convolutions, relus)?);
        let (x, y) = (convolution.input(0)?, convolution.output(0)?);
        let size = *self.graph.tensor(x).shape.as_ref()?.first()?;
        let step = size.div_ceil(count.max(1));
        let cut = AxisCut {
            axis: 0,
            count,
            step,
            size,
        };
        let is_float =
            |&tensor: &TensorId| self.graph.tensor(tensor).element == Some(ElementType::Float);
        let fits = self.alike(dy, y)
            && self.alike(dx, y)
            && [dy, dx, x, y].iter().all(is_float)
            && step > 0
            && size.div_ceil(step) == count
            && self.graph.tensor(y).shape.as_ref()?.first() == Some(&size)
            && convolution.captures.is_empty()
            && self.opset() >= 11;
        if !fits {
            return None;
        }
        let gradients = self.split_by_images(dy, &cut)?;
        let mut dxs = Vec::new();
        for number in 0..count {
            let gradient = gradients[number as usize];
            let mut inputs = vec![Some(self.slice(x, &cut, number)?)];
            let others = convolution.inputs.iter().skip(1);
            inputs.extend(others.map(|input| input.map(|tensor| self.value(tensor))));
            let shape = self.cut(y, &cut, number)?;
            let again = Computation::of(convolution, inputs);
            let again = self.define_value(again, Some(ElementType::Float), Some(shape.clone()));
            dxs.push(Some(self.gradient_of_slice(gradient, again, shape)));
        }
        self.equate("", "Concat", axis(0), dxs, dx)
    }

    /// Which of these nodes, by what they write, the activation reads of which the node is the gradient.
    fn that_writes(&self, nodes: &BTreeMap<ValueNumber, NodeId>, relus: &Relus) -> Option<NodeId> {
        let read = self.value(self.node.input(1)?);
        let of_relu = || nodes.get(relus.get(&read)?);
        nodes.get(&read).or_else(of_relu).copied()
    }

    /// Equal slices of channels, each aligned.
    fn channels(&self, image: TensorId, count: u64) -> Option<AxisCut> {
        let image = self.graph.tensor(image);
        let shape = image.shape.as_ref()?;
        let (&size, area) = (shape.get(1)?, shape.get(2..)?);
        let bytes = area.iter().try_fold(4u64, |n, &d| n.checked_mul(d))?;
        let applies = count > 0
            && size > 0
            && size % count == 0
            && bytes % 64 == 0
            && image.element == Some(ElementType::Float)
            && (13..18).contains(&self.opset());
        let step = size.checked_div(count)?;
        applies.then_some(AxisCut {
            axis: 1,
            count,
            step,
            size,
        })
    }

    /// The node itself, which has two inputs, on a slice.
    fn gradient_of_slice(
        &mut self,
        dy: ValueNumber,
        y: ValueNumber,
        shape: Vec<u64>,
    ) -> ValueNumber {
        let slice = Computation::of(self.node, vec![Some(dy), Some(y)]);
        self.define_value(slice, Some(ElementType::Float), Some(shape))
    }

    /// The shape of a slice of the tensor.
    fn cut(&self, of: TensorId, cut: &AxisCut, number: u64) -> Option<Vec<u64>> {
        let mut shape = self.graph.tensor(of).shape.clone()?;
        *shape.get_mut(cut.axis)? = cut.taken(number);
        Some(shape)
    }

    /// From where the slice before ended; the last one to the end, so that nothing is left out. The other one of the first two axes
    /// is taken whole.
    fn slice(&mut self, of: TensorId, cut: &AxisCut, number: u64) -> Option<ValueNumber> {
        let begin = i64::try_from(number * cut.step).ok()?;
        let end = match number + 1 == cut.count {
            true => i64::MAX,
            false => i64::try_from((number + 1) * cut.step).ok()?,
        };
        let (from, to) = match cut.axis {
            0 => ([begin, 0], [end, i64::MAX]),
            1 => ([0, begin], [i64::MAX, end]),
            _ => return None,
        };
        let shape = self.cut(of, cut, number)?;
        let mut inputs = vec![Some(self.value(of))];
        for values in [from, to, [0, 1]] {
            inputs.push(Some(self.ints(values.to_vec())));
        }
        let element = self.graph.tensor(of).element?;
        Some(self.define_of(("", "Slice"), vec![], inputs, element, shape))
    }

    /// Parts along the first axis, which take together whatever that axis has: each but the last one at most `step`, and nothing
    /// once all is taken.
    fn split_by_images(&mut self, of: TensorId, cut: &AxisCut) -> Option<Vec<ValueNumber>> {
        let step = i64::try_from(cut.step).ok()?;
        let begins: Option<Vec<i64>> = (0..cut.count)
            .map(|number| i64::try_from(number).ok()?.checked_mul(step))
            .collect();
        let mut most = vec![step; usize::try_from(cut.count).ok()?];
        *most.last_mut()? = i64::MAX;
        let [zero, one] = [0, 1].map(|number| self.ints(vec![number]));
        let (begins, most) = (self.ints(begins?), self.ints(most));
        let rank = self.graph.tensor(of).shape.as_ref()?.len() as u64;
        let whole = self.value(of);
        let shape = self.int64("Shape", &[whole], rank);
        let size = self.int64("Slice", &[shape, zero, one, zero], 1);
        let left = self.int64("Sub", &[size, begins], cut.count);
        let left = self.int64("Max", &[left, zero], cut.count);
        let sizes = self.int64("Min", &[left, most], cut.count);
        let split = computation("", "Split", axis(0), vec![Some(whole), Some(sizes)]);
        let shapes: Option<Vec<_>> = (0..cut.count)
            .map(|number| self.cut(of, cut, number))
            .collect();
        self.parts(split, shapes?)
    }

    /// What a computation writes, in these shapes.
    fn parts(&mut self, split: Computation, shapes: Vec<Vec<u64>>) -> Option<Vec<ValueNumber>> {
        if let Some(known) = self.values.repeatable.get(&split) {
            return known.outputs.iter().copied().collect();
        }
        let float = Some(ElementType::Float);
        let fresh = shapes
            .into_iter()
            .map(|shape| self.values.fresh(float, Some(shape)));
        let parts: Vec<ValueNumber> = fresh.collect();
        self.insert_all(split, parts.iter().copied().map(Some).collect());
        Some(parts)
    }

    /// What is computed of lists of whole numbers.
    fn int64(&mut self, op_type: &str, of: &[ValueNumber], size: u64) -> ValueNumber {
        let (inputs, int64) = (of.iter().copied().map(Some).collect(), ElementType::Int64);
        self.define_of(("", op_type), vec![], inputs, int64, vec![size])
    }

    /// Equal parts along an axis.
    fn equal_slices(
        &mut self,
        of: ValueNumber,
        along: i64,
        count: u64,
        shape: Vec<u64>,
    ) -> Option<Vec<ValueNumber>> {
        let mut split = computation("", "Split", axis(along), vec![Some(of)]);
        split.attributes.push(equal_parts(count as usize));
        split.attributes.sort();
        self.parts(split, vec![shape; count as usize])
    }
}

fn axis(number: i64) -> Attributes {
    vec![("axis", AttributeValue::Int(number))]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::graph::{AttributeValue, Graph, Node, NodeId, Uses};
    use crate::operators::variants::{Group, VARIANTS};
    use crate::pass::Pass;
    use crate::rewrite::apply_variants::ApplyVariants;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::testing::{SplitMix64, random_training_graph};
    use crate::verify::equivalence;

    const NORM: &str = "g (float[2,4,4,4] x, float[4] scale, float[4] bias, float[4] mean, float[4] var, float[2,4,4,4] dy)
          => (float[2,4,4,4] dx, float[2,4,4,4] dy2, float[4] ds, float[4] db)
        {
            y, m2, v2, saved_mean, inverse = com.microsoft.BatchNormInternal <epsilon = 1e-5, momentum = 0.9, training_mode = 1> (x, scale, bias, mean, var)
            a = Relu (y)
            [node] dy2 = com.microsoft.ReluGrad (dy, a)
            [other] dx, ds, db = com.microsoft.BatchNormalizationGrad <epsilon = 1e-5> (dy2, x, scale, saved_mean, inverse)
        }";

    const CONVOLUTION: &str =
        "g (float[N,2,4,4] x, float[3,2,1,1] w, float[N,3,4,4] dy) => (float[N,3,4,4] dx)
        {
            y = Conv (x, w)
            a = Relu (y)
            [node] dx = com.microsoft.ReluGrad (dy, a)
        }";

    /// The graph, and the same with all nodes replaced of which there is a variant of that name.
    fn sliced(text: &str, name: &str) -> [Graph; 2] {
        let head = "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>";
        let mut graph = Graph::parse(&format!("{head} {text}")).unwrap();
        let images = text.contains("[N,").then(|| ("N".to_owned(), 5));
        let bindings = BTreeMap::from_iter(images);
        InferShapes { bindings }.run(&mut graph).unwrap();
        let variant = VARIANTS.iter().find(|one| one.name == name).unwrap();
        let uses = Uses::of(&graph);
        let applies = |&id: &NodeId| variant.parts(&graph, &uses, id).is_some();
        let choices = graph.order().iter().copied().filter(applies);
        let choices: Vec<_> = choices.map(|id| (id, variant)).collect();
        assert_eq!(choices.len(), 1, "{name}");
        let mut rewritten = graph.clone();
        let Ok(_) = (ApplyVariants { choices: &choices }).run(&mut rewritten);
        [graph, rewritten]
    }

    fn is_proved(original: &Graph, rewritten: &Graph) -> bool {
        equivalence(original, rewritten, &Default::default()).is_ok()
    }

    /// The graph with one thing of a node changed, in every way, with what it is.
    fn changes(graph: &Graph, id: NodeId) -> Vec<(String, Graph)> {
        let node = graph.node(id);
        let mut all = Vec::new();
        let mut change = |what: String, to: &dyn Fn(&mut Node)| {
            let mut changed = graph.clone();
            to(changed.node_mut(id));
            all.push((what, changed));
        };
        for first in 1..node.inputs.len() {
            if node.inputs[first - 1] != node.inputs[first] {
                change("inputs swapped".to_owned(), &|node| {
                    node.inputs.swap(first - 1, first)
                });
                change("an input twice".to_owned(), &|node| {
                    node.inputs[first] = node.inputs[first - 1]
                });
            }
        }
        for missing in 0..node.inputs.len() {
            if node.is("", "Concat") {
                change("an input missing".to_owned(), &|node| {
                    node.inputs.remove(missing);
                });
            }
        }
        for first in 1..node.outputs.len() {
            change("outputs swapped".to_owned(), &|node| {
                node.outputs.swap(first - 1, first)
            });
        }
        for (place, attribute) in node.attributes.iter().enumerate() {
            let others = match &attribute.value {
                AttributeValue::Int(value) => {
                    vec![
                        AttributeValue::Int(value - 1),
                        AttributeValue::Int(value + 1),
                    ]
                }
                AttributeValue::Float(value) => vec![AttributeValue::Float(value + 1.0)],
                // Starts, ends and axes of slices, one at a time.
                AttributeValue::Ints(values) => {
                    let with = |at: usize, by: i64| {
                        let mut values = values.clone();
                        values[at] = values[at].saturating_sub(by);
                        AttributeValue::Ints(values)
                    };
                    let each = 0..values.len();
                    each.flat_map(|at| [with(at, 1), with(at, i64::MAX / 2)])
                        .collect()
                }
                other => panic!("{other:?}"),
            };
            for other in others {
                change(attribute.name.clone(), &|node| {
                    node.attributes[place].value = other.clone()
                });
            }
        }
        all
    }

    /// Its kernel divides by the root of 0 + 1, which is not exactly 1 on every CPU.
    #[test]
    fn a_normalization_of_inference_is_none_of_training() {
        let text = |again: &str| {
            format!(
                r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
                g (float[2,4,4,4] x, float[4] scale, float[4] bias, float[4] m, float[4] v) => (float[2,4,4,4] z, float[4] m2, float[4] v2) {{
                    y, m2, v2, mean, inverse = com.microsoft.BatchNormInternal <training_mode = 1> (x, scale, bias, m, v)
                    {again}
                }}"#
            )
        };
        let graph = |again: &str| {
            let mut graph = Graph::parse(&text(again)).unwrap();
            let bindings = BTreeMap::new();
            InferShapes { bindings }.run(&mut graph).unwrap();
            graph
        };
        let original = graph("z = Neg (y)");
        let again = "factor = Mul (inverse, scale) zeros = Sub (mean, mean)
            y2 = BatchNormalization <epsilon = 1.0> (x, factor, bias, mean, zeros) z = Neg (y2)";
        assert!(is_proved(&original, &graph("z = Neg (y)")));
        assert!(!is_proved(&original, &graph(again)));
    }

    #[test]
    fn every_change_of_what_works_slice_by_slice_is_rejected() {
        let all = [
            (NORM, "relu-gradient-by-channels"),
            (NORM, "batch-norm-gradient-by-channels"),
            (CONVOLUTION, "relu-gradient-by-images"),
        ];
        for (text, name) in all {
            let [original, rewritten] = sliced(text, name);
            assert!(is_proved(&original, &rewritten), "{name}");
            let mut rejected = 0;
            for &id in rewritten.order() {
                for (what, changed) in changes(&rewritten, id) {
                    let node = rewritten.node(id);
                    assert!(
                        !is_proved(&original, &changed),
                        "{name}: {what} of {node:?}"
                    );
                    rejected += 1;
                }
            }
            assert!(rejected > 100, "{name}: {rejected}");
        }
    }

    #[test]
    fn random_graphs_are_proved_slice_by_slice_and_changes_of_them_are_not() {
        let mut applied: BTreeMap<&str, usize> = BTreeMap::new();
        let mut rejected = 0;
        for seed in 0..120 {
            let graph = random_training_graph(seed, 60);
            let uses = Uses::of(&graph);
            let slices = VARIANTS.iter().filter(|one| one.group == Group::Slices);
            let slices: Vec<_> = slices.collect();
            let choice = |&id: &NodeId| {
                let mut all = slices.iter();
                let fits = all.find(|one| one.parts(&graph, &uses, id).is_some());
                fits.map(|&variant| (id, variant))
            };
            let choices: Vec<_> = graph.order().iter().filter_map(choice).collect();
            for (_, variant) in &choices {
                *applied.entry(variant.name).or_default() += 1;
            }
            let mut rewritten = graph.clone();
            let Ok(_) = (ApplyVariants { choices: &choices }).run(&mut rewritten);
            equivalence(&graph, &rewritten, &Default::default()).expect("a proof");
            // One change of one new node: all take too long.
            let order = rewritten.order().iter().copied();
            let new: Vec<NodeId> = order
                .filter(|id| id.index() >= graph.node_count())
                .collect();
            let mut random = SplitMix64::new(seed);
            let mut pick = |count: usize| random.bits() as usize % count;
            for _ in 0..new.len().min(8) {
                let mut all = changes(&rewritten, new[pick(new.len())]);
                if !all.is_empty() {
                    let (what, changed) = all.swap_remove(pick(all.len()));
                    assert!(!is_proved(&graph, &changed), "seed {seed}: {what}");
                    rejected += 1;
                }
            }
        }
        assert_eq!(applied.len(), 3, "{applied:?}");
        assert!(applied.values().all(|&count| count >= 4), "{applied:?}");
        assert!(rejected >= 100, "{rejected}");
    }

    #[test]
    fn slices_of_channels_that_are_not_aligned_are_neither_made_nor_accepted() {
        let [original, rewritten] = sliced(NORM, "batch-norm-gradient-by-channels");
        // 4 x 4 elements take 64 bytes, 4 x 5 take 80.
        let wider = |mut graph: Graph| {
            for id in graph.tensor_ids().collect::<Vec<_>>() {
                let tensor = graph.tensor_mut(id);
                if let Some([.., last]) = tensor.shape.as_deref_mut().filter(|s| s.len() == 4) {
                    *last = 5;
                }
            }
            graph
        };
        let (original, rewritten) = (wider(original), wider(rewritten));
        assert!(!is_proved(&original, &rewritten));
        let uses = Uses::of(&original);
        let made = |&id: &NodeId| {
            let by_channels = VARIANTS
                .iter()
                .filter(|one| one.name.ends_with("by-channels"));
            by_channels
                .filter(|one| one.parts(&original, &uses, id).is_some())
                .count()
        };
        assert_eq!(original.order().iter().map(made).sum::<usize>(), 0);
    }
}
