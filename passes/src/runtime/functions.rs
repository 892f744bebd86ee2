//! Operators without a kernel, which the runtime takes apart before it runs anything.
//!
//! Their pieces are nodes like others: they run where the execution order puts them, behind all other nodes, and each has
//! memory of its own. So no workspace could stand for them.

use crate::graph::{AttributeValue, ElementType, Graph, Node};
use crate::operators::{MICROSOFT, Provider};

/// One node of a function's body.
#[derive(Clone, Debug)]
pub struct FunctionNode {
    /// Its domain.
    pub domain: &'static str,
    /// Its operator.
    pub op_type: &'static str,
    /// Its attributes.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// What it reads, by the names in the body.
    pub inputs: &'static [&'static str],
    /// What it writes, by the names in the body.
    pub outputs: &'static [&'static str],
}

/// What the runtime makes of an operator.
#[derive(Clone, Debug)]
pub struct Function {
    /// What the body calls the operator's inputs.
    pub inputs: &'static [&'static str],
    /// What the body calls its outputs.
    pub outputs: &'static [&'static str],
    /// In the sequence of the nodes' indices, on which it depends when they run. (Sessions save them in another.)
    pub body: Vec<FunctionNode>,
}

/// The pieces of `node`, if the runtime takes it apart with this provider.
///
/// Runtime fact (1.19.2, from the graphs that sessions save of each case of `testdata/operators.json` and
/// `testdata/workspaces.json`): all pieces run, those of an omitted output as well. Of the operators that have float32 inputs these
/// are all, and Bernoulli, CenterCropPad and NegativeLogLikelihoodLoss, which are left whole, with what their pieces need as
/// their workspace: the first draws other numbers under another name, the others have no gradients and hold little. In
/// float64, losses, layer normalizations and some activations' gradients are taken apart, too; they are not here.
pub fn function(graph: &Graph, node: &Node, provider: Provider) -> Option<Function> {
    if provider != Provider::Cpu {
        return None;
    }
    let element = |position: usize| graph.tensor(node.input(position)?).element;
    match (node.domain.as_str(), node.op_type.as_str()) {
        // The runtime refuses one of several types, and its pieces would give another than the node.
        (MICROSOFT, "DivGrad") if has_one_type(graph, node) => Some(division_gradient()),
        ("", "HardSwish") => Some(Function {
            inputs: &["X"],
            outputs: &["Y"],
            body: vec![
                step("HardSigmoid", &["X"], &["part"])
                    .float("alpha", 1.0 / 6.0)
                    .float("beta", 0.5),
                step("Mul", &["X", "part"], &["Y"]),
            ],
        }),
        ("", "Mish") => Some(Function {
            inputs: &["X"],
            outputs: &["Y"],
            body: vec![
                step("Softplus", &["X"], &["softplus"]),
                step("Tanh", &["softplus"], &["part"]),
                step("Mul", &["X", "part"], &["Y"]),
            ],
        }),
        ("", "CastLike") => Some(Function {
            inputs: &["X", "like"],
            outputs: &["Y"],
            body: vec![step("Cast", &["X"], &["Y"]).int("to", element(1)? as i64)],
        }),
        // Later versions have another body.
        ("", "GroupNormalization") if graph.opsets.get("").is_some_and(|&version| version < 21) => {
            // All are of one type, which may be known before it is inferred, as that of weights is.
            let element = (0..3).find_map(element)?;
            Some(group_normalization(node, element))
        }
        _ => None,
    }
}

const fn step(
    op_type: &'static str,
    inputs: &'static [&'static str],
    outputs: &'static [&'static str],
) -> FunctionNode {
    FunctionNode {
        domain: "",
        op_type,
        attributes: Vec::new(),
        inputs,
        outputs,
    }
}

impl FunctionNode {
    fn of_microsoft(self) -> FunctionNode {
        FunctionNode {
            domain: MICROSOFT,
            ..self
        }
    }

    fn with(mut self, name: &'static str, value: AttributeValue) -> FunctionNode {
        self.attributes.push((name, value));
        self
    }

    fn int(self, name: &'static str, value: i64) -> FunctionNode {
        self.with(name, AttributeValue::Int(value))
    }

    fn float(self, name: &'static str, value: f32) -> FunctionNode {
        self.with(name, AttributeValue::Float(value))
    }
}

/// Can all that the node reads have the same type?
fn has_one_type(graph: &Graph, node: &Node) -> bool {
    let mut types = node.reads().filter_map(|read| graph.tensor(read).element);
    let first = types.next();
    types.all(|other| Some(other) == first)
}

fn division_gradient() -> Function {
    let shape = |inputs, outputs| step("Shape", inputs, outputs);
    let reduce = |inputs, outputs| {
        step("ReduceSumTraining", inputs, outputs)
            .of_microsoft()
            .int("keepdims", 1)
            .int("noop_with_empty_axes", 1)
    };
    let axes = step(
        "BroadcastGradientArgs",
        &["shape_A", "shape_B"],
        &["axes_A", "axes_B"],
    );
    Function {
        inputs: &["dY", "A", "B"],
        outputs: &["dA", "dB"],
        body: vec![
            shape(&["A"], &["shape_A"]),
            shape(&["B"], &["shape_B"]),
            axes.of_microsoft(),
            step("Div", &["dY", "B"], &["whole_dA"]),
            reduce(&["whole_dA", "axes_A"], &["reduced_dA"]),
            step("Reshape", &["reduced_dA", "shape_A"], &["dA"]),
            step("Mul", &["B", "B"], &["B_squared"]),
            step("Neg", &["A"], &["minus_A"]),
            step("Div", &["minus_A", "B_squared"], &["quotient"]),
            step("Mul", &["dY", "quotient"], &["whole_dB"]),
            reduce(&["whole_dB", "axes_B"], &["reduced_dB"]),
            step("Reshape", &["reduced_dB", "shape_B"], &["dB"]),
        ],
    }
}

/// The statistics are those of rows `[batch, groups, the rest]`; scale and bias are by group.
fn group_normalization(node: &Node, element: ElementType) -> Function {
    let ints = |values: Vec<i64>, outputs| {
        step("Constant", &[], outputs).with("value_ints", AttributeValue::Ints(values))
    };
    let cast = |inputs, outputs| step("Cast", inputs, outputs).int("to", element as i64);
    let epsilon = vec![node.float("epsilon").unwrap_or(1e-5)];
    let groups = vec![node.int("num_groups").unwrap_or(1)];
    let dimension = |outputs, start| {
        let shape = step("Shape", &["X"], outputs).int("start", start);
        shape.int("end", start + 1)
    };
    Function {
        inputs: &["X", "scale", "bias"],
        outputs: &["Y"],
        body: vec![
            step("Constant", &[], &["epsilon"])
                .with("value_floats", AttributeValue::Floats(epsilon)),
            step("Cast", &["epsilon"], &["cast_epsilon"]).int("to", ElementType::Float as i64),
            step("Shape", &["X"], &["shape"]),
            dimension(&["channels"], 1),
            ints(groups, &["groups"]),
            step("Div", &["channels", "groups"], &["group_size"]),
            dimension(&["batch"], 0),
            step("Shape", &["X"], &["instance"]).int("start", 2),
            step(
                "Concat",
                &["batch", "groups", "group_size", "instance"],
                &["by_group"],
            )
            .int("axis", 0),
            step("Reshape", &["X", "by_group"], &["grouped"]),
            ints(vec![0, 0, -1], &["rows"]),
            step("Reshape", &["grouped", "rows"], &["X_rows"]),
            ints(vec![2], &["last"]),
            step("ReduceMean", &["X_rows", "last"], &["mean"]),
            step("Mul", &["X_rows", "X_rows"], &["squares"]),
            step("ReduceMean", &["squares", "last"], &["mean_square"]),
            step("Mul", &["mean", "mean"], &["squared_mean"]),
            step("Sub", &["mean_square", "squared_mean"], &["variance"]),
            step("Add", &["variance", "cast_epsilon"], &["above_zero"]),
            step("Sqrt", &["above_zero"], &["deviation"]),
            step("Sub", &["X_rows", "mean"], &["centred"]),
            step("Div", &["centred", "deviation"], &["normalized"]),
            ints(vec![1, -1, 1], &["by_row"]),
            cast(&["scale"], &["cast_scale"]),
            cast(&["bias"], &["cast_bias"]),
            step("Reshape", &["cast_scale", "by_row"], &["row_scale"]),
            step("Reshape", &["cast_bias", "by_row"], &["row_bias"]),
            step("Mul", &["row_scale", "normalized"], &["scaled"]),
            step("Add", &["scaled", "row_bias"], &["biased"]),
            step("Reshape", &["biased", "shape"], &["Y"]),
        ],
    }
}
