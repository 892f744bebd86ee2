use insta::assert_snapshot;

use super::*;

/// The nodes that stand for those of a graph with these inputs and outputs.
fn lowered(opset: i64, interface: &str, nodes: &str) -> String {
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> g {interface} {{ {nodes} }}"#
    );
    let mut graph = Graph::parse(&text).unwrap();
    match lower(&mut graph, &BTreeMap::new()) {
        Ok(_) => {
            crate::verify::structure(&graph).unwrap();
            graph.to_listing()
        }
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn a_rectifier_s_gradient_is_a_product_with_a_mask() {
    let interface = "(float[N,4] dy, float[N,4] y) => (float[N,4] dx)";
    assert_snapshot!(lowered(15, interface, "[r] dx = com.microsoft.ReluGrad (dy, y)"), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "r/Greater:0" = Greater(y, "ckpt-opt/lower/constant_0")
    "r/Cast:0" = Cast("r/Greater:0")
    dx = Mul(dy, "r/Cast:0")
    "#);
}

#[test]
fn an_operator_without_a_form_is_named() {
    let interface = "(float[N,4] x) => (float[N,4] y)";
    assert_snapshot!(lowered(15, interface, "[wait] y = com.microsoft.YieldOp (x)"), @r#"error: YieldOp "wait": there is no form of YieldOp in standard operators"#);
}

#[test]
fn an_old_operator_set_is_refused() {
    let interface = "(float[N,4] dy, float[N,4] y) => (float[N,4] dx)";
    assert_snapshot!(lowered(12, interface, "[r] dx = com.microsoft.ReluGrad (dy, y)"), @"error: the file asks for operator set 12 of ai.onnx; expected 13 or newer: export it again");
}

#[test]
fn every_operator_has_one_entry() {
    let mut names: Vec<_> = TABLE.iter().map(|e| (e.domain, e.name)).collect();
    names.sort_unstable();
    let doubled: Vec<_> = names.windows(2).filter(|w| w[0] == w[1]).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
}

#[test]
fn a_convolution_s_gradient_is_a_transposed_convolution_and_a_product_for_each_tap() {
    let interface = "(float[N,16,9,9] dy, float[N,8,9,10] x, float[16,8,1,2] w) => (float[N,8,9,10] dx, float[16,8,1,2] dw)";
    let node = "[c] dx, dw = com.microsoft.ConvGrad <kernel_shape = [1, 2], pads = [0, 0, 0, 0]> (dy, x, w)";
    assert_snapshot!(lowered(15, interface, node), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "ckpt-opt/lower/constant_1" = Constant()
    "ckpt-opt/lower/constant_2" = Constant()
    "ckpt-opt/lower/constant_3" = Constant()
    "ckpt-opt/lower/constant_4" = Constant()
    "ckpt-opt/lower/constant_5" = Constant()
    "ckpt-opt/lower/constant_6" = Constant()
    "ckpt-opt/lower/constant_7" = Constant()
    "ckpt-opt/lower/constant_8" = Constant()
    "c/Reshape:0" = Reshape(dy, "ckpt-opt/lower/constant_0")
    "c/Slice:0" = Slice(x, "ckpt-opt/lower/constant_2", "ckpt-opt/lower/constant_1", "ckpt-opt/lower/constant_3", "ckpt-opt/lower/constant_4")
    "c/Reshape:0_1" = Reshape("c/Slice:0", "ckpt-opt/lower/constant_0")
    "c/FusedMatMul:0" = FusedMatMul("c/Reshape:0", "c/Reshape:0_1")
    "c/Slice:0_1" = Slice(x, "ckpt-opt/lower/constant_6", "ckpt-opt/lower/constant_5", "ckpt-opt/lower/constant_3", "ckpt-opt/lower/constant_4")
    "c/Reshape:0_2" = Reshape("c/Slice:0_1", "ckpt-opt/lower/constant_0")
    "c/FusedMatMul:0_1" = FusedMatMul("c/Reshape:0", "c/Reshape:0_2")
    "c/ReduceSum:0" = ReduceSum("c/FusedMatMul:0", "ckpt-opt/lower/constant_8")
    "c/ReduceSum:0_1" = ReduceSum("c/FusedMatMul:0_1", "ckpt-opt/lower/constant_8")
    "c/Concat:0" = Concat("c/ReduceSum:0", "c/ReduceSum:0_1")
    "c/Transpose:0" = Transpose("c/Concat:0")
    dw = Reshape("c/Transpose:0", "ckpt-opt/lower/constant_7")
    dx = ConvTranspose(dy, w)
    "#);
}

#[test]
fn an_accumulated_value_comes_out_in_place_of_the_flag() {
    let interface = "(float[9] b, float[9] g, bool[1] o) => (bool[1] done)";
    let node = "[a] done = com.microsoft.InPlaceAccumulatorV2 (b, g, o)";
    assert_snapshot!(lowered(15, interface, node), @r#"
    "a/Add:0" = Add(b, g)
    done = Where(o, g, "a/Add:0")
    "#);
}

#[test]
fn what_is_kept_of_a_large_buffer_has_one_size_and_waits_for_the_value() {
    let interface = "(float[64,8,3,3] b, float[64,8,3,3] g, float[64,64] c, float[64,64] h, bool[1] o) => (bool[1] done, bool[1] ready)";
    let nodes = "[a] done = com.microsoft.InPlaceAccumulatorV2 (b, g, o)
        [d] ready = com.microsoft.InPlaceAccumulatorV2 (c, h, o)";
    assert_snapshot!(lowered(14, interface, nodes), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "ckpt-opt/lower/constant_1" = Constant()
    "ckpt-opt/lower/constant_2" = Constant()
    "ckpt-opt/lower/constant_3" = Constant()
    "ckpt-opt/lower/constant_4" = Constant()
    "a/Not:0" = Not(o)
    "a/Reshape:0" = Reshape("a/Not:0", "ckpt-opt/lower/constant_0")
    "a/Cast:0" = Cast("a/Reshape:0")
    "a/Mul:0" = Mul("a/Cast:0", "ckpt-opt/lower/constant_1")
    "a/Add:0" = Add("a/Mul:0", "ckpt-opt/lower/constant_2")
    "a/Size:0" = Size(g)
    "a/Min:0" = Min("a/Add:0", "a/Size:0")
    "a/Reshape:0_1" = Reshape(b, "ckpt-opt/lower/constant_3")
    "a/Trilu:0" = Trilu("a/Reshape:0_1", "a/Min:0")
    "a/Reshape:0_2" = Reshape("a/Trilu:0", "ckpt-opt/lower/constant_4")
    done = Add(g, "a/Reshape:0_2")
    "d/Size:0" = Size(h)
    "d/Min:0" = Min("a/Add:0", "d/Size:0")
    "d/Trilu:0" = Trilu(c, "d/Min:0")
    ready = Add(h, "d/Trilu:0")
    "#);
}

#[test]
fn the_operator_set_rises_where_places_may_be_there_twice() {
    let interface = "(int64[2] s, int64[N] i, float[N,4] dy) => (float[9,4] dx)";
    let node = "[g] dx = com.microsoft.GatherGrad (s, i, dy)";
    let text = format!(r#"<ir_version: 8, opset_import: ["" : 14]> g {interface} {{ {node} }}"#);
    let mut graph = Graph::parse(&text).unwrap();
    let found = lower(&mut graph, &BTreeMap::new()).unwrap();
    assert_eq!(found.raised, Some((14, 16)));
    assert_snapshot!(graph.to_listing(), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "g/Reshape:0" = Reshape(i, "ckpt-opt/lower/constant_0")
    "g/Shape:0" = Shape(dy)
    "g/Expand:0" = Expand("g/Reshape:0", "g/Shape:0")
    "g/ConstantOfShape:0" = ConstantOfShape(s)
    dx = ScatterElements("g/ConstantOfShape:0", "g/Expand:0", dy)
    "#);
}

#[test]
fn what_is_needed_to_lower_a_node_is_named() {
    let interface = "(float[N,4,4,4] dy) => (float[N,4,H,8] dx)";
    let node = "[p] dx = AveragePoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (dy)";
    assert_snapshot!(lowered(15, interface, node), @r#"error: AveragePoolGrad "p": nothing says how large dimension 2 of "dx" is; expected a number"#);
}
