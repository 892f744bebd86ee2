//! Pooling and its gradients.

use super::view::{Fault, Input, Outputs, View, known, unknown};
use super::window::Window;
use super::{Family, Operator, microsoft, onnx, per_input_element};
use crate::graph::{ElementType, TensorId};

pub(super) const OPERATORS: &[Operator] = &[
    pooling("MaxPool"),
    pooling("AveragePool"),
    pooling("LpPool"),
    global("GlobalMaxPool"),
    global("GlobalAveragePool"),
    global("GlobalLpPool"),
    onnx("MaxPoolGrad", Family::PoolingGradient, max_gradient),
    // Neither dY nor an attribute says how large X was.
    onnx("AveragePoolGrad", Family::PoolingGradient, |_| unknown()),
    microsoft("MaxpoolWithMask", Family::Pooling, pool).operations(window_operations),
];

const fn pooling(name: &'static str) -> Operator {
    onnx(name, Family::Pooling, pool).operations(window_operations)
}

const fn global(name: &'static str) -> Operator {
    onnx(name, Family::Reduction, over_everything).operations(|view| per_input_element(view, 1.0))
}

/// One comparison or addition per element of each window.
fn window_operations(view: &View) -> Option<f64> {
    let kernel = view.node.ints("kernel_shape")?;
    let window: f64 = kernel.iter().map(|&k| k.max(1) as f64).product();
    Some(view.output(0)?.count() as f64 * window)
}

fn image<'a>(view: &View<'a>) -> Result<Input<'a>, Fault> {
    let x = view.input(0)?;
    if x.rank() < 3 {
        return Err(x.wrong(0, "batch, channels and at least one spatial axis"));
    }
    Ok(x)
}

/// X `[N, C, ...]` -> Y `[N, C, ...]`, and for MaxPool the position of each maximum.
fn pool(view: &View) -> Result<Outputs, Fault> {
    let x = image(view)?;
    let window = Window::of(view, x.rank() - 2, None)?;
    let mut shape = x.shape[..2].to_vec();
    let ceiling = view.node.int("ceil_mode").unwrap_or(0) != 0;
    shape.extend(window.slide(&x.shape[2..], ceiling)?);
    Ok(vec![
        x.with_shape(shape.clone()),
        known(ElementType::Int64, shape),
    ])
}

fn over_everything(view: &View) -> Result<Outputs, Fault> {
    let x = image(view)?;
    let mut shape = x.shape.to_vec();
    shape[2..].fill(1);
    Ok(vec![x.with_shape(shape)])
}

/// MaxPoolGrad(dY, indices) -> dX: shaped like the input of the MaxPool that made the indices.
fn max_gradient(view: &View) -> Result<Outputs, Fault> {
    let element = view.input(0)?.element;
    let pooled = view.node.input(1).and_then(|indices| pooled(view, indices));
    let shape = pooled.and_then(|x| view.graph.tensor(x).shape.clone());
    Ok(vec![shape.and_then(|shape| known(element, shape))])
}

/// What was pooled to give these indices; looked for through a few aliases (barriers) and casts
/// (indices that are kept as smaller numbers).
fn pooled(view: &View, indices: TensorId) -> Option<TensorId> {
    let mut tensor = indices;
    for _ in 0..16 {
        let node = view.graph.node(view.uses?.producer(tensor)?);
        let position = node.outputs.iter().position(|&o| o == Some(tensor))?;
        if node.op_type == "MaxPool" && position == 1 {
            return node.input(0);
        }
        let aliases = super::aliases(node);
        let alias = aliases.iter().find(|&&(output, _)| output == position);
        let cast = node.is("", "Cast").then_some(0);
        tensor = node.input(alias.map(|&(_, input)| input).or(cast)?)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::testing::Case;
    use crate::graph::Graph;
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;

    fn max(x: &[u64], kernel: &[i64]) -> Case {
        Case::onnx("MaxPool")
            .float(x)
            .list("kernel_shape", kernel)
            .outputs(2)
    }

    #[test]
    fn the_gradient_finds_what_was_pooled_behind_casts_of_the_indices() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[1,1,5,5] x, float[1,1,2,2] dy) => (dx) {
                y, wide = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
                narrow = Cast <to = 6> (wide)
                mask = Cast <to = 7> (narrow)
                dx = MaxPoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (dy, mask)
            }"#;
        let mut graph = Graph::parse(text).unwrap();
        let bindings = Default::default();
        InferShapes { bindings }.run(&mut graph).unwrap();
        let dx = graph.tensor_named("dx").unwrap();
        assert_eq!(graph.tensor(dx).shape, Some(vec![1, 1, 5, 5]));
    }

    #[test]
    fn indices_take_eight_bytes_an_element() {
        // (112 + 1 + 1 - 3) / 2 + 1 = 56
        let case = max(&[2, 64, 112, 112], &[3, 3])
            .list("pads", &[1, 1, 1, 1])
            .list("strides", &[2, 2]);
        assert_eq!(
            case.shapes(),
            ["float[2, 64, 56, 56]", "int64[2, 64, 56, 56]"]
        );
    }

    #[test]
    fn ceil_mode_keeps_the_last_window() {
        // ceil((4 - 2) / 3) + 1 = 2, the second starts at 3
        let case = max(&[1, 1, 4], &[2]).list("strides", &[3]);
        assert_eq!(case.clone().shapes()[0], "float[1, 1, 1]");
        assert_eq!(case.int("ceil_mode", 1).shapes()[0], "float[1, 1, 2]");
    }

    #[test]
    fn global_pools_leave_one_value_per_channel() {
        let case = Case::onnx("GlobalAveragePool").float(&[2, 8, 7, 5]);
        assert_eq!(case.shapes(), ["float[2, 8, 1, 1]"]);
    }

    #[test]
    fn pooling_needs_a_kernel() {
        let case = Case::onnx("AveragePool").float(&[1, 1, 4]);
        insta::assert_snapshot!(case.fault(),
            @r#"attribute "kernel_shape" is None; expected one size per spatial axis"#);
    }
}
