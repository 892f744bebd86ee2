//! Further layers, of which real training graphs are made as well: recurrent ones, convolutions of other kinds, poolings, attention,
//! losses. Their gradients are those that ONNX Runtime's gradient
//! builder writes, where it has one.

use super::forward::{BATCH, Forward};
use super::graphs::Builder;
use super::layers::Layer;
use crate::graph::{AttributeValue, ElementType, NodeId, TensorId, TensorKind};

/// What a random graph may be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Variety {
    /// The usual layers, and every size is known.
    Usual,
    /// All that the runtime has CPU kernels for, and that the text form can say.
    Runnable,
    /// Anything.
    Any,
}

/// What the layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Transpose,
    /// To double and back.
    Cast,
    Slice,
    Gather,
    /// Rows of a table, added to what there is.
    Embedding,
    AveragePool,
    GlobalAveragePool,
    Where,
    DivByConstant,
    /// By what is computed from the same.
    Div,
    Pow,
    Erf,
    Pad,
    Tile,
    /// A dimension more, and back.
    Unsqueeze,
    Einsum,
    Lstm,
    ConstantOfShape,
    PassThrough,
    Resize,
    ConvTranspose,
    If,
    Loop,
    Scan,
}

/// Those that run come first.
const KINDS: [Kind; 24] = [
    Kind::Transpose,
    Kind::Cast,
    Kind::Slice,
    Kind::Gather,
    Kind::Embedding,
    Kind::AveragePool,
    Kind::GlobalAveragePool,
    Kind::Where,
    Kind::DivByConstant,
    Kind::Div,
    Kind::Pow,
    Kind::Erf,
    Kind::Pad,
    Kind::Tile,
    Kind::Unsqueeze,
    Kind::Einsum,
    Kind::Lstm,
    Kind::ConstantOfShape,
    Kind::PassThrough,
    Kind::Resize,
    Kind::ConvTranspose,
    Kind::If,
    Kind::Loop,
    Kind::Scan,
];

/// Of which so many do not.
const NOT_RUNNABLE: usize = 5;

/// One such layer.
#[derive(Clone, Debug)]
pub(super) struct Further {
    kind: Kind,
    /// What it reads that gradients may flow to: an activation, then weights or another activation.
    reads: Vec<TensorId>,
    /// What its gradient needs besides.
    saved: Vec<TensorId>,
    pub(super) y: TensorId,
    /// Of a Transpose: the permutation.
    sizes: Vec<i64>,
}

const HIDDEN: u64 = 4;
/// As an integer: what is left over.
const REST: u64 = u64::MAX;

fn ints(name: &'static str, values: &[i64]) -> (&'static str, AttributeValue) {
    (name, AttributeValue::Ints(values.to_vec()))
}

fn int(name: &'static str, value: i64) -> (&'static str, AttributeValue) {
    (name, AttributeValue::Int(value))
}

fn text(name: &'static str, value: &str) -> (&'static str, AttributeValue) {
    (name, AttributeValue::String(value.as_bytes().to_vec()))
}

fn halving() -> Vec<(&'static str, AttributeValue)> {
    let windows = [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])];
    let others = [ints("pads", &[0; 4]), int("count_include_pad", 0)];
    windows.into_iter().chain(others).collect()
}

fn doubling() -> Vec<(&'static str, AttributeValue)> {
    let windows = [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])];
    let others = [ints("pads", &[0; 4]), int("group", 1)];
    windows.into_iter().chain(others).collect()
}

fn nearest() -> Vec<(&'static str, AttributeValue)> {
    let how = text("coordinate_transformation_mode", "asymmetric");
    vec![how, text("mode", "nearest"), text("nearest_mode", "floor")]
}

fn lstm() -> Vec<(&'static str, AttributeValue)> {
    let direction = text("direction", "forward");
    vec![
        int("hidden_size", HIDDEN as i64),
        direction,
        int("input_forget", 0),
    ]
}

impl Forward {
    /// Adds a further layer on `x`; false where the one that was drawn cannot stand there.
    pub(super) fn further(&mut self, builder: &mut Builder, x: TensorId) -> bool {
        let all = match builder.variety {
            Variety::Any => KINDS.len(),
            _ => KINDS.len() - NOT_RUNNABLE,
        };
        let kind = builder.random.pick(&KINDS[..all]);
        let shape = builder.shape(x);
        let image = shape.len() == 4;
        let width = shape[shape.len() - 1];
        let fits = match kind {
            Kind::Slice | Kind::Gather => shape[1] > 2,
            Kind::Embedding | Kind::Einsum | Kind::Lstm => self.weighty && !image && self.left >= 8,
            Kind::AveragePool => image && shape[2] >= 2 && shape[3] >= 2,
            Kind::GlobalAveragePool => image && shape[2] * shape[3] > 1,
            Kind::Pad | Kind::Tile => width <= 16,
            Kind::Resize => image && shape[2].max(width) <= 8,
            Kind::ConvTranspose => image && self.weighty && shape[2].max(width) <= 8,
            _ => true,
        };
        if !fits || self.left < 5 {
            return false;
        }
        let made = self.make(builder, kind, x, &shape);
        let bounds = matches!(kind, Kind::Pow | Kind::Erf);
        let (reads, y) = (made.reads.clone(), made.y);
        self.bound(y, bounds);
        // The gradient of a Tile takes most.
        let nodes = if kind == Kind::Tile { 8 } else { 6 };
        self.add(Layer::Further(made), &reads, &[y], nodes);
        true
    }

    fn make(&mut self, builder: &mut Builder, kind: Kind, x: TensorId, shape: &[u64]) -> Further {
        let (mut reads, mut saved, mut sizes) = (vec![x], Vec::new(), Vec::new());
        let image = shape.len() == 4;
        let float = |shape: &[u64]| Some((ElementType::Float, shape.to_vec()));
        let mut like = shape.to_vec();
        let last = shape.len() - 1;
        let y = match kind {
            Kind::Transpose => {
                let choices: &[&[i64]] = match image {
                    true => &[&[0, 1, 3, 2], &[0, 2, 3, 1]],
                    false => &[&[1, 0]],
                };
                sizes = builder.random.pick(choices).to_vec();
                let turned: Vec<u64> = sizes.iter().map(|&at| shape[at as usize]).collect();
                builder.node("Transpose", &[x], &turned, &[ints("perm", &sizes)])
            }
            Kind::Cast => {
                let double = builder.cast(x, ElementType::Double);
                builder.cast(double, ElementType::Float)
            }
            Kind::Slice => {
                let ends = [[1], [shape[1]], [1], [1]];
                saved = ends.map(|value| builder.ints("slice", &value)).to_vec();
                like[1] -= 1;
                let inputs = [&[x][..], &saved].concat();
                builder.node("Slice", &inputs, &like, &[])
            }
            Kind::Gather => {
                let indices: Vec<u64> = (0..shape[1] / 2 * 2).map(|at| at / 2).collect();
                saved = vec![builder.ints("indices", &indices)];
                like[1] = indices.len() as u64;
                builder.node("Gather", &[x, saved[0]], &like, &[int("axis", 1)])
            }
            Kind::Embedding => {
                let table = self.weight(builder, "table", &[5, shape[1]]);
                let ids: Vec<u64> = (0..shape[0]).map(|row| row * 3 % 5).collect();
                let ids = builder.ints("ids", &ids);
                reads.push(table);
                saved = vec![ids];
                let rows = builder.node("Gather", &[table, ids], shape, &[int("axis", 0)]);
                builder.node("Add", &[x, rows], shape, &[])
            }
            Kind::AveragePool => {
                (like[2], like[3]) = (shape[2] / 2, shape[3] / 2);
                builder.node("AveragePool", &[x], &like, &halving())
            }
            Kind::GlobalAveragePool => {
                (like[2], like[3]) = (1, 1);
                builder.node("GlobalAveragePool", &[x], &like, &[])
            }
            Kind::Where => {
                let zero = builder.floats("zero", &[], vec![0.0]);
                let flags = [Some((ElementType::Bool, shape.to_vec()))];
                let above = builder.node_with("Greater", &[x, zero], &flags, &[])[0];
                let other = self.partner(builder, x, |a, b| a == b);
                reads.push(other);
                saved = vec![above, zero];
                builder.node("Where", &[above, x, other], shape, &[])
            }
            Kind::DivByConstant => {
                let count = shape[last] as usize;
                let by = (0..count).map(|at| 1.5 + at as f64 / 8.0).collect();
                saved = vec![builder.floats("divisor", &shape[last..], by)];
                builder.node("Div", &[x, saved[0]], shape, &[])
            }
            Kind::Div => {
                let sigmoid = builder.node("Sigmoid", &[x], shape, &[]);
                let by = builder.node("Exp", &[sigmoid], shape, &[]);
                saved = vec![sigmoid, by];
                builder.node("Div", &[x, by], shape, &[])
            }
            Kind::Pow => {
                let two = builder.floats("two", &[], vec![2.0]);
                let tanh = builder.node("Tanh", &[x], shape, &[]);
                saved = vec![tanh, two];
                builder.node("Pow", &[tanh, two], shape, &[])
            }
            Kind::Erf => builder.node("Erf", &[x], shape, &[]),
            Kind::Pad => {
                let mut pads = vec![0; 2 * shape.len()];
                (pads[last], pads[2 * last + 1]) = (1, 1);
                saved = vec![builder.ints("pads", &pads)];
                like[last] += 2;
                builder.node("Pad", &[x, saved[0]], &like, &[text("mode", "constant")])
            }
            Kind::Tile => {
                let mut repeats = vec![1; shape.len()];
                repeats[last] = 2;
                saved = vec![builder.ints("repeats", &repeats)];
                like[last] *= 2;
                builder.node("Tile", &[x, saved[0]], &like, &[])
            }
            Kind::Unsqueeze => {
                saved = vec![builder.ints("axes", &[1])];
                like.insert(1, 1);
                let more = builder.node("Unsqueeze", &[x, saved[0]], &like, &[]);
                builder.node("Squeeze", &[more, saved[0]], shape, &[])
            }
            Kind::Einsum => {
                let weight = self.weight(builder, "w", &[8, shape[1]]);
                reads.push(weight);
                let equation = [text("equation", "ij,kj->ik")];
                builder.node("Einsum", &[x, weight], &[shape[0], 8], &equation)
            }
            Kind::Lstm => {
                let axis = builder.ints("axes", &[1]);
                let both = builder.ints("axes", &[1, 2]);
                let rows = [shape[0], 1, shape[1]];
                let rows = builder.node("Unsqueeze", &[x, axis], &rows, &[]);
                let gates = 4 * HIDDEN;
                let weights = [
                    self.weight(builder, "w", &[1, gates, shape[1]]),
                    self.weight(builder, "r", &[1, gates, HIDDEN]),
                    self.weight(builder, "b", &[1, 2 * gates]),
                ];
                let zeros = || vec![0.0; HIDDEN as usize];
                let state = builder.floats("state", &[1, 1, HIDDEN], zeros());
                let [w, r, b] = weights.map(Some);
                let inputs = [Some(rows), w, r, b, None, Some(state), Some(state)];
                let (steps, one) = ([shape[0], 1, 1, HIDDEN], float(&[1, 1, HIDDEN]));
                let all = [shape[0], 1, 1, gates];
                let outputs = [float(&steps), one.clone(), one, float(&steps), float(&all)];
                let made = builder.node_of(".LSTMTraining", &inputs, &outputs, &lstm());
                reads.extend(weights);
                saved = vec![rows, state, made[0], made[3], made[4], axis, both];
                builder.node("Squeeze", &[made[0], both], &[shape[0], HIDDEN], &[])
            }
            Kind::ConstantOfShape => {
                let sizes = builder.shape_of(x);
                let zeros = builder.node("ConstantOfShape", &[sizes], shape, &[]);
                builder.node("Add", &[x, zeros], shape, &[])
            }
            Kind::PassThrough => builder.node(".PassThrough", &[x], shape, &[]),
            Kind::Resize => {
                let region = builder.floats("region", &[0], Vec::new());
                let scales = builder.floats("scales", &[4], vec![1.0, 1.0, 2.0, 2.0]);
                saved = vec![region, scales];
                (like[2], like[3]) = (2 * shape[2], 2 * shape[3]);
                builder.node("Resize", &[x, region, scales], &like, &nearest())
            }
            Kind::ConvTranspose => {
                let weight = self.weight(builder, "w", &[shape[1], 2, 2, 2]);
                reads.push(weight);
                let doubled = [shape[0], 2, 2 * shape[2], 2 * shape[3]];
                builder.node("ConvTranspose", &[x, weight], &doubled, &doubling())
            }
            Kind::If => {
                let flag = builder.truth("condition");
                let bodies = ["then_branch", "else_branch"].map(|of| (of, AttributeValue::Opaque));
                let y = builder.node("If", &[flag], shape, &bodies);
                builder.captures(x);
                // No gradient flows through a body.
                builder.node("Add", &[x, y], shape, &[])
            }
            Kind::Loop => {
                let (count, flag) = (builder.ints("count", &[2]), builder.truth("condition"));
                let body = [("body", AttributeValue::Opaque)];
                let y = builder.node("Loop", &[count, flag, x], shape, &body);
                builder.node("Add", &[x, y], shape, &[])
            }
            Kind::Scan => {
                let rows = [int("num_scan_inputs", 1), ("body", AttributeValue::Opaque)];
                let y = builder.node("Scan", &[x], shape, &rows);
                builder.node("Add", &[x, y], shape, &[])
            }
        };
        Further {
            kind,
            reads,
            saved,
            y,
            sizes,
        }
    }
}

impl Further {
    /// The gradients of what it reads, from that of `y`. Not all of them are wanted.
    pub(super) fn gradients(
        &self,
        builder: &mut Builder,
        dy: TensorId,
        wanted: &impl Fn(TensorId) -> bool,
    ) -> Vec<(TensorId, TensorId)> {
        let (x, saved) = (self.reads[0], &self.saved);
        let shape = &builder.shape(x);
        let weight = self.reads.get(1).copied();
        let float = |of: &[u64]| Some((ElementType::Float, of.to_vec()));
        let dx = match self.kind {
            // Where nobody wants it, it is not made; but what follows gives several at once.
            Kind::Embedding => {
                let table = self.reads[1];
                let rows = builder.node("Identity", &[dy], shape, &[]);
                let sizes = builder.shape_of(table);
                let inputs = [sizes, saved[0], rows];
                let of = builder.shape(table);
                let given = builder.node(".GatherGrad", &inputs, &of, &[int("axis", 0)]);
                return vec![(x, dy), (table, given)];
            }
            Kind::Einsum => {
                let weight = self.reads[1];
                let of = builder.shape(weight);
                let back = [text("equation", "ik,kj->ij")];
                let dx = wanted(x).then(|| builder.node("Einsum", &[dy, weight], shape, &back));
                let back = [text("equation", "ik,ij->kj")];
                let dw = builder.node("Einsum", &[dy, x], &of, &back);
                return dx
                    .map(|dx| (x, dx))
                    .into_iter()
                    .chain([(weight, dw)])
                    .collect();
            }
            Kind::ConvTranspose => {
                let weight = self.reads[1];
                let dx = wanted(x).then(|| (ElementType::Float, shape.clone()));
                let outputs = [dx.clone(), float(&builder.shape(weight))];
                let inputs = [dy, x, weight];
                let made = builder.node_with(".ConvTransposeGrad", &inputs, &outputs, &doubling());
                let dx = dx.map(|_| (x, made[0]));
                return dx
                    .into_iter()
                    .chain([(weight, made[made.len() - 1])])
                    .collect();
            }
            Kind::Lstm => {
                let [rows, state, all, cells, gates, axis, both] = saved[..] else {
                    return Vec::new();
                };
                let steps = builder.shape(all);
                let dy = builder.node("Unsqueeze", &[dy, both], &steps, &[]);
                let read = [rows, self.reads[1], self.reads[2]].map(Some);
                let kept = [state, state, all, cells, gates, dy].map(Some);
                let inputs = [&read[..], &[None], &kept, &[None, None]].concat();
                let of = [rows, self.reads[1], self.reads[2], self.reads[3]];
                let outputs = of.map(|of| float(&builder.shape(of)));
                let made = builder.node_of(".LSTMGrad", &inputs, &outputs, &lstm());
                let dx = builder.node("Squeeze", &[made[0], axis], shape, &[]);
                let weights = self.reads[1..]
                    .iter()
                    .copied()
                    .zip(made[1..].iter().copied());
                return [(x, dx)].into_iter().chain(weights).collect();
            }
            Kind::Where => {
                let of = |builder: &mut Builder, inputs: [TensorId; 3]| {
                    builder.node("Where", &inputs, shape, &[])
                };
                let other = self.reads[1];
                let (above, zero) = (saved[0], saved[1]);
                let mut given = Vec::new();
                if wanted(x) {
                    given.push((x, of(builder, [above, dy, zero])));
                }
                if wanted(other) {
                    given.push((other, of(builder, [above, zero, dy])));
                }
                return given;
            }
            _ if !wanted(x) => return Vec::new(),
            Kind::Div => {
                let (sigmoid, by) = (saved[0], saved[1]);
                let outputs = [float(shape), float(shape)];
                let made = builder.node_with(".DivGrad", &[dy, x, by], &outputs, &[]);
                let of_sigmoid = builder.node("Mul", &[made[1], by], shape, &[]);
                let second = builder.node(".SigmoidGrad", &[of_sigmoid, sigmoid], shape, &[]);
                return vec![(x, made[0]), (x, second)];
            }
            Kind::Transpose => {
                let mut back = vec![0; self.sizes.len()];
                for (at, &from) in self.sizes.iter().enumerate() {
                    back[from as usize] = at as i64;
                }
                builder.node("Transpose", &[dy], shape, &[ints("perm", &back)])
            }
            Kind::Cast => {
                let double = builder.cast(dy, ElementType::Double);
                builder.cast(double, ElementType::Float)
            }
            Kind::Slice => {
                let sizes = builder.shape_of(x);
                let inputs = [&[dy, sizes][..], saved].concat();
                builder.node(".SliceGrad", &inputs, shape, &[])
            }
            Kind::Gather => {
                let sizes = builder.shape_of(x);
                let inputs = [sizes, saved[0], dy];
                builder.node(".GatherGrad", &inputs, shape, &[int("axis", 1)])
            }
            Kind::AveragePool => builder.node("AveragePoolGrad", &[dy], shape, &halving()),
            Kind::GlobalAveragePool => {
                let count = builder.floats("scale", &[], vec![(shape[2] * shape[3]) as f64]);
                let down = [int("scale_down", 1)];
                let of = builder.shape(dy);
                let scaled = builder.node(".Scale", &[dy, count], &of, &down);
                let sizes = builder.shape_of(x);
                builder.node("Expand", &[scaled, sizes], shape, &[])
            }
            Kind::DivByConstant => {
                let divided = builder.node("Div", &[dy, saved[0]], shape, &[]);
                builder.node("Identity", &[divided], shape, &[])
            }
            Kind::Pow => {
                let (tanh, two) = (saved[0], saved[1]);
                let one = builder.floats("one", &[], vec![1.0]);
                let less = builder.node("Sub", &[two, one], &[], &[]);
                let power = builder.node("Pow", &[tanh, less], shape, &[]);
                let times = builder.node("Mul", &[power, two], shape, &[]);
                let given = builder.node("Mul", &[times, dy], shape, &[]);
                builder.node(".TanhGrad", &[given, tanh], shape, &[])
            }
            Kind::Erf => {
                let factor = builder.floats("factor", &[], vec![1.125]);
                let square = builder.node("Mul", &[x, x], shape, &[]);
                let below = builder.node("Neg", &[square], shape, &[]);
                let bell = builder.node("Exp", &[below], shape, &[]);
                let scaled = builder.node("Mul", &[bell, factor], shape, &[]);
                builder.node("Mul", &[dy, scaled], shape, &[])
            }
            Kind::Pad => {
                let pads = builder.shape(saved[0]);
                let numbers = [Some((ElementType::Int64, pads))];
                let back = builder.node_with("Neg", &[saved[0]], &numbers, &[])[0];
                builder.node("Pad", &[dy, back], shape, &[text("mode", "constant")])
            }
            Kind::Tile => {
                let rank = shape.len() as u64;
                let axes = builder.ints("axes", &[1]);
                let sizes = builder.shape_of(x);
                let column = [Some((ElementType::Int64, vec![rank, 1]))];
                let sizes = builder.node_with("Unsqueeze", &[sizes, axes], &column, &[])[0];
                let repeats = builder.node_with("Unsqueeze", &[saved[0], axes], &column, &[])[0];
                let pairs = [Some((ElementType::Int64, vec![rank, 2]))];
                let along = [int("axis", 1)];
                let pairs = builder.node_with("Concat", &[repeats, sizes], &pairs, &along)[0];
                let rest = builder.ints("rest", &[REST]);
                let flat = [Some((ElementType::Int64, vec![2 * rank]))];
                let flat = builder.node_with("Reshape", &[pairs, rest], &flat, &[])[0];
                let tiled = builder.shape(dy);
                let split: Vec<u64> = (0..shape.len())
                    .flat_map(|at| [tiled[at] / shape[at], shape[at]])
                    .collect();
                let parts = builder.node("Reshape", &[dy, flat], &split, &[]);
                let even: Vec<u64> = (0..rank).map(|at| 2 * at).collect();
                let even = builder.ints("even", &even);
                builder.node("ReduceSum", &[parts, even], shape, &[int("keepdims", 0)])
            }
            Kind::Unsqueeze => {
                let mut more = shape.clone();
                more.insert(1, 1);
                let given = builder.node("Unsqueeze", &[dy, saved[0]], &more, &[]);
                builder.node("Squeeze", &[given, saved[0]], shape, &[])
            }
            Kind::Resize => {
                let inputs = [dy, x, saved[0], saved[1]];
                builder.node(".ResizeGrad", &inputs, shape, &nearest())
            }
            Kind::ConstantOfShape | Kind::PassThrough | Kind::If | Kind::Loop | Kind::Scan => {
                builder.node("Identity", &[dy], shape, &[])
            }
        };
        debug_assert!(weight.is_none());
        vec![(x, dx)]
    }
}

impl Builder {
    fn cast(&mut self, x: TensorId, to: ElementType) -> TensorId {
        let outputs = [Some((to, self.shape(x)))];
        self.node_with("Cast", &[x], &outputs, &[int("to", to as i64)])[0]
    }

    fn shape_of(&mut self, x: TensorId) -> TensorId {
        let rank = self.shape(x).len() as u64;
        let outputs = [Some((ElementType::Int64, vec![rank]))];
        self.node_with("Shape", &[x], &outputs, &[])[0]
    }

    /// A body of the last node reads `x`.
    fn captures(&mut self, x: TensorId) {
        let last = NodeId(self.graph.node_count() as u32 - 1);
        self.graph.node_mut(last).captures.push(x);
    }

    /// One half of the varied graphs has a batch of any size: 4, where it is asked for. Nothing is declared of values but
    /// where their sizes do not follow.
    pub(super) fn leave_batch_open(&mut self, inputs: &[TensorId]) {
        use crate::graph::Dimension;
        let nodes: Vec<NodeId> = self.graph.order().to_vec();
        for id in nodes {
            let node = self.graph.node(id);
            let told = ["If", "Loop", "Scan", "YieldOp", "AveragePoolGrad"]
                .contains(&node.op_type.as_str());
            let written: Vec<TensorId> = node.writes().collect();
            for tensor in written.into_iter().filter(|_| !told) {
                debug_assert_eq!(self.graph.tensor(tensor).kind, TensorKind::Value);
                if !self.graph.outputs.contains(&tensor) {
                    self.graph.tensor_mut(tensor).declared = None;
                }
            }
        }
        for &input in inputs {
            // Samples may have become features on the way to the loss.
            if self.shape(input)[0] != BATCH {
                continue;
            }
            let declared = &mut self.graph.tensor_mut(input).declared;
            if let Some(first) = declared.as_mut().and_then(|sizes| sizes.first_mut()) {
                *first = Dimension::Symbol("batch".to_owned());
            }
        }
    }
}
