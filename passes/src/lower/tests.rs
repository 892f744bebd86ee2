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
