//! Graphs that nobody would make and the runtime runs.

use super::*;
use crate::analysis::cost::NodeOverride;
use crate::strategy::tests::options;
use crate::testing::random_training_graph;

fn planned(graph: &Graph, options: &Options) -> Result<Optimized, String> {
    let found = optimize(graph, options).map_err(|error| error.to_string())?;
    let summary = &found.summary;
    assert_eq!(summary.faults, []);
    verify_written(graph, &found.graph, options, summary.budget).unwrap();
    Ok(found)
}

fn planned_for_least(nodes: &str) -> Result<Optimized, String> {
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
        g (float[64,64] dy, float[64,64] a, float[64] b, bool[1] always) => (float[64,64] q, bool[1] u) {{ {nodes} }}"#
    );
    let graph = Graph::parse(&text).unwrap();
    planned(&graph, &options(Strategy::Auto, BudgetRequest::Smallest))
}

/// ONNX Runtime 1.19.2 loads it, and takes no notice of what it reads.
#[test]
fn a_constant_that_reads_something_stands_behind_that() {
    let nodes = "[e] c = Exp (a) [k] k = Constant <value_ints = [64, 64]> (c) [r] r = Reshape (c, k) q = com.microsoft.ReluGrad (dy, r) u = Identity (always)";
    let found = planned_for_least(nodes).unwrap();
    let place = |name: &str| {
        let mut order = found.graph.order().iter();
        order.position(|&id| found.graph.node(id).name == name)
    };
    assert!(place("e") < place("k"));
}

#[test]
fn what_reads_updated_memory_is_planned_in_pieces_and_what_is_updated_itself_is_refused() {
    let of = |buffer: &str| {
        let nodes = format!(
            "[div] q, y = com.microsoft.DivGrad (dy, a, b) [sum] u = com.microsoft.InPlaceAccumulatorV2 ({buffer}, dy, always)"
        );
        planned_for_least(&nodes)
    };
    let found = of("a").unwrap();
    let is_there = |op_type: &str| {
        let mut nodes = found.graph.order().iter();
        nodes.any(|&id| found.graph.node(id).op_type == op_type)
    };
    assert!(is_there("Div") && !is_there("DivGrad"));
    insta::assert_snapshot!(of("q").unwrap_err(), @r#"the input graph is not valid: InPlaceAccumulatorV2 "sum" updates "q" in place, which DivGrad "div" computes and the runtime takes apart: expected memory that no such node writes"#);
}

/// A float has 53 bits, and the workspace takes more.
#[test]
fn a_graph_fits_all_of_its_peak_however_large_that_is() {
    let graph = random_training_graph(3, 12);
    for request in [
        BudgetRequest::PartOfPeak(1.0),
        BudgetRequest::FixedPlusPart(1.0),
    ] {
        for more in 0..16 {
            let mut options = options(Strategy::Auto, request);
            let said = NodeOverride {
                workspace_bytes: Some((83 << 50) + more),
                ..NodeOverride::default()
            };
            let last = *graph.order().last().unwrap();
            options
                .overrides
                .insert(graph.node(last).name.clone(), said);
            options.effort.evaluations = 0;
            planned(&graph, &options).unwrap();
        }
    }
}
