//! Operators without a kernel, which the runtime takes apart before it runs anything.
//!
//! Their pieces are nodes like others: they run where the execution order puts them, behind all other nodes, and each has
//! memory of its own. So no workspace could stand for them.

use crate::graph::{ElementType, Graph, Node};
use crate::operators::{MICROSOFT, Provider};

/// What the runtime makes of `node`, if it takes it apart with this provider: a graph of which the inputs and outputs are those of the
/// node, by position, as far as it has them. Its nodes stand in the sequence of their indices, on which it depends when
/// they run. (Sessions save them in another.)
///
/// Runtime fact (1.19.2, from the graphs that sessions save of each case of `testdata/operators.json` and
/// `testdata/workspaces.json`, and from the indices in profiles): all pieces run, those of an omitted output as well. Of the operators
/// that have float32 inputs these are all, and CenterCropPad and NegativeLogLikelihoodLoss, which are left whole, with what
/// their pieces need as their workspace: they have no gradients and hold little. In float16, losses and Bernoulli are taken
/// apart, too; they are not here. Later releases take apart the same, but for what `Release` has of them.
/// With a seed, the piece of Bernoulli draws the same numbers; without one, a node's numbers depend on where it stands.
pub fn function(graph: &Graph, node: &Node, provider: Provider) -> Option<Graph> {
    if provider != Provider::Cpu {
        return None;
    }
    let element = |position: usize| graph.tensor(node.input(position)?).element;
    // A number that text does not have, such as no number, stands in no body.
    let function = Graph::parse(&body(graph, node, &element)?).ok();
    // The runtime refuses a node with more outputs than its operator has.
    function.filter(|function| node.outputs.len() <= function.outputs.len())
}

/// Does it depend on types that are not known yet what the runtime makes of `node`?
pub fn awaits_types(graph: &Graph, node: &Node, provider: Provider) -> bool {
    let untyped = |read| graph.tensor(read).element.is_none();
    let in_half = |_| Some(ElementType::Float16);
    provider == Provider::Cpu && node.reads().any(untyped) && body(graph, node, &in_half).is_some()
}

/// The text of that graph, with inputs of these types.
fn body(
    graph: &Graph,
    node: &Node,
    element: &dyn Fn(usize) -> Option<ElementType>,
) -> Option<String> {
    // Most have one type, which may be known of one input before it is inferred of others, as that of weights is.
    let any_element = || (0..node.inputs.len()).find_map(&element);
    let opset = graph.opset().unwrap_or(i64::MAX);
    let is = |elements: &[ElementType]| any_element().filter(|of| elements.contains(of));
    let half = || is(&[ElementType::Float16]);
    let half_or_double = || is(&[ElementType::Float16, ElementType::Double]);
    match (node.domain.as_str(), node.op_type.as_str()) {
        // The runtime refuses one of several types, and its pieces would give another than the node.
        (MICROSOFT, "DivGrad") if has_one_type(graph, node) => Some(DIVISION_GRADIENT.to_owned()),
        ("", "Bernoulli") => {
            let of = is(&[ElementType::Float, ElementType::Double])?;
            Some(bernoulli(node, of))
        }
        ("", "HardSwish") => Some(HARD_SWISH.to_owned()),
        ("", "Mish") => Some(MISH.to_owned()),
        ("", "CastLike") => {
            let to = element(1)? as i64;
            Some(format!("f (X, like) => (Y) {{ Y = Cast <to = {to}> (X) }}"))
        }
        ("", "GroupNormalization") => group_normalization(node, any_element()?, opset >= 21),
        ("", "LayerNormalization") => {
            let of_x = half()?;
            layer_normalization(node, element(1).unwrap_or(of_x), opset)
        }
        // Later versions of what it consists of have other inputs: the runtime refuses it.
        (MICROSOFT, "LayerNormalizationGrad") if opset < 18 => {
            Some(layer_normalization_gradient(node, half()?))
        }
        // Older ones have a kernel.
        ("", "Softmax" | "LogSoftmax") if opset >= 13 => half().map(|_| softmax(node, opset)),
        (MICROSOFT, "Gelu") => Some(gelu(half()?)),
        (MICROSOFT, "GeluGrad") => Some(gelu_gradient(half()?)),
        (MICROSOFT, "FastGelu") => Some(fast_gelu(half()?, node.input(1).is_some())),
        (MICROSOFT, "FastGeluGrad") => Some(fast_gelu_gradient(half_or_double()?)),
        (MICROSOFT, "SigmoidGrad") => Some(sigmoid_gradient(half_or_double()?)),
        (MICROSOFT, "TanhGrad") => Some(tanh_gradient(half_or_double()?)),
        (MICROSOFT, "DropoutGrad") => {
            let of = element(0).filter(|&of| of == ElementType::Float16)?;
            Some(dropout_gradient(of, node.input(2).is_some()))
        }
        _ => None,
    }
}

/// Can all that the node reads have the same type?
fn has_one_type(graph: &Graph, node: &Node) -> bool {
    let mut types = node.reads().filter_map(|read| graph.tensor(read).element);
    let first = types.next();
    types.all(|other| Some(other) == first)
}

const DIVISION_GRADIENT: &str = "f (dY, A, B) => (dA, dB) {
    shape_A = Shape (A)
    shape_B = Shape (B)
    axes_A, axes_B = com.microsoft.BroadcastGradientArgs (shape_A, shape_B)
    whole_dA = Div (dY, B)
    reduced_dA = com.microsoft.ReduceSumTraining <keepdims = 1, noop_with_empty_axes = 1> (whole_dA, axes_A)
    dA = Reshape (reduced_dA, shape_A)
    B_squared = Mul (B, B)
    minus_A = Neg (A)
    quotient = Div (minus_A, B_squared)
    whole_dB = Mul (dY, quotient)
    reduced_dB = com.microsoft.ReduceSumTraining <keepdims = 1, noop_with_empty_axes = 1> (whole_dB, axes_B)
    dB = Reshape (reduced_dB, shape_B)
}";

const HARD_SWISH: &str = "f (X) => (Y) {
    part = HardSigmoid <alpha = 0.16666667, beta = 0.5> (X)
    Y = Mul (X, part)
}";

const MISH: &str = "f (X) => (Y) {
    softplus = Softplus (X)
    part = Tanh (softplus)
    Y = Mul (X, part)
}";

fn bernoulli(node: &Node, element: ElementType) -> String {
    let (of, to) = (element as i64, node.int("dtype").unwrap_or(element as i64));
    let seed = node.float("seed");
    let seed = seed.map_or(String::new(), |seed| format!(", seed : float = {seed:?}"));
    format!(
        "f (X) => (Y) {{
            random = RandomUniformLike <dtype = {of}, high = 1.0, low = 0.0{seed}> (X)
            greater = Greater (random, X)
            Y = Cast <to = {to}> (greater)
        }}"
    )
}

/// Two `Reshape`s make rows `[batch, groups, the rest]`, and of each row the statistics. Scale and bias are by group; from opset 21 on they
/// are by channel, and what is in between is in float32.
fn group_normalization(node: &Node, element: ElementType, by_channel: bool) -> Option<String> {
    let in_float = node.int("stash_type").is_none_or(|stash| stash == 1);
    let epsilon = node.float("epsilon").unwrap_or(1e-5);
    let groups = node.int("num_groups").unwrap_or(1);
    let to = element as i64;
    let by_row = "by_row = Constant <value_ints = [1, -1, 1]> ()";
    // Its place is another one in each.
    let (widened, x, before, after, z) = match by_channel {
        false => ("", "X", by_row.to_owned(), "", "normalized"),
        true if in_float => {
            let narrowed = format!(
                "whole = Reshape (normalized, shape)
                by_channel = Reshape (whole, rows)
                cast_normalized = Cast <to = {to}> (by_channel)"
            );
            (
                "XU = Cast <to = 1> (X)",
                "XU",
                narrowed,
                by_row,
                "cast_normalized",
            )
        }
        true => return None,
    };
    Some(format!(
        "f (X, scale, bias) => (Y) {{
            epsilon = Constant <value_floats : floats = [{epsilon:?}]> ()
            cast_epsilon = Cast <to = 1> (epsilon)
            {widened}
            shape = Shape ({x})
            channels = Shape <start = 1, end = 2> (X)
            groups = Constant <value_ints = [{groups}]> ()
            group_size = Div (channels, groups)
            batch = Shape <start = 0, end = 1> (X)
            instance = Shape <start = 2> (X)
            by_group = Concat <axis = 0> (batch, groups, group_size, instance)
            grouped = Reshape ({x}, by_group)
            rows = Constant <value_ints = [0, 0, -1]> ()
            X_rows = Reshape (grouped, rows)
            last = Constant <value_ints = [2]> ()
            mean = ReduceMean (X_rows, last)
            squares = Mul (X_rows, X_rows)
            mean_square = ReduceMean (squares, last)
            squared_mean = Mul (mean, mean)
            variance = Sub (mean_square, squared_mean)
            above_zero = Add (variance, cast_epsilon)
            deviation = Sqrt (above_zero)
            centred = Sub (X_rows, mean)
            normalized = Div (centred, deviation)
            {before}
            cast_scale = Cast <to = {to}> (scale)
            cast_bias = Cast <to = {to}> (bias)
            {after}
            row_scale = Reshape (cast_scale, by_row)
            row_bias = Reshape (cast_bias, by_row)
            scaled = Mul (row_scale, {z})
            biased = Add (scaled, row_bias)
            Y = Reshape (biased, shape)
        }}"
    ))
}

/// `axes` for a reduction along one axis: an attribute, or an input from a version on, which is given instead.
fn reduction(opset: i64, axis: i64, input: &str) -> (String, String) {
    match opset < 18 {
        true => (format!("axes = [{axis}], keepdims = 1"), String::new()),
        false => ("keepdims = 1".to_owned(), format!(", {input}")),
    }
}

/// In float32, but for scale and bias, of which `element` is the type.
fn layer_normalization(node: &Node, element: ElementType, opset: i64) -> Option<String> {
    if node.int("stash_type").is_some_and(|stash| stash != 1) {
        return None;
    }
    let axis = node.int("axis").unwrap_or(-1);
    let to = element as i64;
    let epsilon = node.float("epsilon").unwrap_or(1e-5);
    let epsilon = format!("Constant <value_float : float = {epsilon:?}> ()");
    let epsilon = match opset < 17 {
        true => format!("epsilon = {epsilon}"),
        false => format!("float_epsilon = {epsilon} epsilon = Cast <to = 1> (float_epsilon)"),
    };
    let reduced_axes = match axis < 0 {
        true => "Neg (axis)",
        false => "Sub (rank, axis)",
    };
    let (attributes, axes) = reduction(opset, 1, "one");
    let one = match axes.is_empty() {
        true => "",
        false => "one = Constant <value_ints = [1]> ()",
    };
    let (bias, biased) = match node.input(2).is_some() {
        true => (
            ", bias",
            "row_bias = Flatten <axis = 0> (bias) biased = Add (scaled, row_bias)",
        ),
        false => ("", "biased = Identity (scaled)"),
    };
    Some(format!(
        "f (X, scale{bias}) => (Y, whole_mean, whole_inverse) {{
            {epsilon}
            shape = Shape (X)
            rank = Size (shape)
            zero = Constant <value_ints = [0]> ()
            axis = Constant <value_ints = [{axis}]> ()
            before = Slice (shape, zero, axis)
            reduced_axes = {reduced_axes}
            ones = ConstantOfShape <value = int64[1] {{1}}> (reduced_axes)
            reduced_shape = Concat <axis = 0> (before, ones)
            rows = Flatten <axis = {axis}> (X)
            XU = Cast <to = 1> (rows)
            {one}
            mean = ReduceMean <{attributes}> (XU{axes})
            squares = Mul (XU, XU)
            mean_square = ReduceMean <{attributes}> (squares{axes})
            squared_mean = Mul (mean, mean)
            variance = Sub (mean_square, squared_mean)
            above_zero = Add (variance, epsilon)
            deviation = Sqrt (above_zero)
            centred = Sub (XU, mean)
            normalized = Div (centred, deviation)
            cast_normalized = Cast <to = {to}> (normalized)
            row_scale = Flatten <axis = 0> (scale)
            scaled = Mul (cast_normalized, row_scale)
            {biased}
            Y = Reshape (biased, shape)
            inverse = Reciprocal (deviation)
            whole_mean = Reshape (mean, reduced_shape)
            whole_inverse = Reshape (inverse, reduced_shape)
        }}"
    ))
}

/// In float32.
fn layer_normalization_gradient(node: &Node, element: ElementType) -> String {
    let axis = node.int("axis").unwrap_or(-1);
    let to = element as i64;
    format!(
        "f (dY, X, scale, mean, inverse) => (dX, d_scale, d_bias) {{
            zero = Constant <value_ints = [0]> ()
            cast_X = Cast <to = 1> (X)
            rows = Flatten <axis = {axis}> (cast_X)
            cast_dY = Cast <to = 1> (dY)
            dY_rows = Flatten <axis = {axis}> (cast_dY)
            row_mean = Flatten <axis = {axis}> (mean)
            row_inverse = Flatten <axis = {axis}> (inverse)
            cast_scale = Cast <to = 1> (scale)
            shape = Shape (X)
            shape_of_scale = Shape (scale)
            row_scale = Flatten <axis = 0> (cast_scale)
            sum_d_bias = ReduceSum <keepdims = 1> (dY_rows, zero)
            wide_d_bias = Reshape (sum_d_bias, shape_of_scale)
            centred = Sub (rows, row_mean)
            normalized = Mul (centred, row_inverse)
            d_scale_rows = Mul (dY_rows, normalized)
            sum_d_scale = ReduceSum <keepdims = 1> (d_scale_rows, zero)
            wide_d_scale = Reshape (sum_d_scale, shape_of_scale)
            scaled_dY = Mul (dY_rows, row_scale)
            B = Mul (scaled_dY, row_inverse)
            C = Mul (B, normalized)
            mean_B = ReduceMean <axes = [1], keepdims = 1> (B)
            mean_C = ReduceMean <axes = [1], keepdims = 1> (C)
            part = Mul (normalized, mean_C)
            centred_B = Sub (B, mean_B)
            dX_rows = Sub (centred_B, part)
            wide_dX = Reshape (dX_rows, shape)
            d_bias = Cast <to = {to}> (wide_d_bias)
            d_scale = Cast <to = {to}> (wide_d_scale)
            dX = Cast <to = {to}> (wide_dX)
        }}"
    )
}

fn softmax(node: &Node, opset: i64) -> String {
    let axis = node.int("axis").unwrap_or(-1);
    let (attributes, axes) = reduction(opset, axis, "axes");
    let result = match node.op_type.as_str() {
        "Softmax" => "Y = Div (powers, sum)",
        _ => "logarithm = Log (sum) Y = Sub (below, logarithm)",
    };
    format!(
        "f (X) => (Y) {{
            axes = Constant <value_ints = [{axis}]> ()
            largest = ReduceMax <{attributes}> (X{axes})
            below = Sub (X, largest)
            powers = Exp (below)
            sum = ReduceSum <keepdims = 1> (powers, axes)
            {result}
        }}"
    )
}

/// A number that the body has, by what it is in float16 and in float64.
fn number(element: ElementType, half: f64, double: f64) -> String {
    let value = match element {
        ElementType::Float16 => half,
        _ => double,
    };
    format!("Constant <value = {} {{{value:?}}}> ()", element.name())
}

fn gelu(element: ElementType) -> String {
    let same = |value| number(element, value, value);
    format!(
        "f (X) => (Y) {{
            half = {} one = {} root_of_half = {}
            part = Mul (root_of_half, X)
            erf = Erf (part)
            above = Add (erf, one)
            phi = Mul (above, half)
            Y = Mul (X, phi)
        }}",
        same(0.5),
        same(1.0),
        same(0.70703125),
    )
}

fn gelu_gradient(element: ElementType) -> String {
    let same = |value| number(element, value, value);
    format!(
        "f (dY, X) => (dX) {{
            half = {} one = {} root_of_half = {} minus_half = {} alpha = {}
            part = Mul (X, root_of_half)
            erf = Erf (part)
            above = Add (erf, one)
            phi = Mul (half, above)
            alpha_X = Mul (X, alpha)
            minus_half_X = Mul (minus_half, X)
            exponent = Mul (minus_half_X, X)
            power = Exp (exponent)
            term = Mul (alpha_X, power)
            sum = Add (phi, term)
            dX = Mul (dY, sum)
        }}",
        same(0.5),
        same(1.0),
        same(0.70703125),
        same(-0.5),
        same(0.39892578125),
    )
}

fn fast_gelu(element: ElementType, has_bias: bool) -> String {
    let same = |value| number(element, value, value);
    let (bias, biased) = match has_bias {
        true => (", bias", "Add (X, bias)"),
        false => ("", "Identity (X)"),
    };
    format!(
        "f (X{bias}) => (Y) {{
            a = {} b = {} c = {} one = {}
            biased = {biased}
            square = Mul (biased, biased)
            c_square = Mul (c, square)
            sum = Add (b, c_square)
            argument = Mul (biased, sum)
            tanh = Tanh (argument)
            above = Add (one, tanh)
            twice = Mul (biased, above)
            Y = Mul (a, twice)
        }}",
        same(0.5),
        same(0.7978515625),
        same(0.035675048828125),
        same(1.0),
    )
}

fn fast_gelu_gradient(element: ElementType) -> String {
    let number = |half, double| number(element, half, double);
    format!(
        "f (dY, X) => (dX) {{
            half = {} one = {} alpha = {} gamma = {} beta = {}
            square = Mul (X, X)
            cube = Mul (X, square)
            gamma_cube = Mul (gamma, cube)
            sum = Add (X, gamma_cube)
            argument = Mul (alpha, sum)
            tanh = Tanh (argument)
            tanh_square = Mul (tanh, tanh)
            below = Sub (one, tanh_square)
            alpha_X = Mul (alpha, X)
            beta_cube = Mul (beta, cube)
            slope = Add (alpha_X, beta_cube)
            term = Mul (below, slope)
            both = Add (tanh, term)
            above = Add (both, one)
            part = Mul (half, above)
            dX = Mul (dY, part)
        }}",
        number(0.5, 0.5),
        number(1.0, 1.0),
        number(0.7978515625, 0.7978845608028654),
        number(0.044708251953125, 0.044714998453855515),
        number(0.1070556640625, 0.10703222070796595),
    )
}

fn sigmoid_gradient(element: ElementType) -> String {
    format!(
        "f (dY, Y) => (dX) {{
            one = {}
            below = Sub (one, Y)
            slope = Mul (Y, below)
            dX = Mul (dY, slope)
        }}",
        number(element, 1.0, 1.0)
    )
}

fn tanh_gradient(element: ElementType) -> String {
    format!(
        "f (dY, Y) => (dX) {{
            one = {}
            square = Mul (Y, Y)
            slope = Sub (one, square)
            dX = Mul (dY, slope)
        }}",
        number(element, 1.0, 1.0)
    )
}

fn dropout_gradient(element: ElementType, has_ratio: bool) -> String {
    let same = |value| number(element, value, value);
    let (input, ratio) = match has_ratio {
        true => (", ratio", format!("Cast <to = {}> (ratio)", element as i64)),
        false => ("", same(0.5)),
    };
    format!(
        "f (dY, mask{input}) => (dX) {{
            zero = {} one = {}
            cast_ratio = {ratio}
            scale = Sub (one, cast_ratio)
            scaled = Div (dY, scale)
            dX = Where (mask, scaled, zero)
        }}",
        same(0.0),
        same(1.0),
    )
}
