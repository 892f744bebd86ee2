//! Inferred shapes against what ONNX Runtime's profile showed (`testdata/shapes`, made by
//! `tools/fixtures/make_shapes.py`).

use std::fs;
use std::path::Path;

use ckpt_opt::onnx::Model;
use ckpt_passes::graph::{Graph, TensorId};
use ckpt_passes::pass::{Changed, Pass as _};
use ckpt_passes::rewrite::infer_shapes::InferShapes;

fn inferred(model: &str) -> Graph {
    let path = format!("testdata/models/{model}.onnx");
    let model = Model::open(Path::new(&path)).expect("a model");
    let mut graph = model.graph().expect("a graph");
    let bindings = [("batch".to_owned(), 2)].into();
    let changed = InferShapes { bindings }.run(&mut graph);
    assert_eq!(changed, Ok(Changed::Yes), "{path}");
    graph
}

fn described(graph: &Graph, id: TensorId) -> String {
    let tensor = graph.tensor(id);
    let element = tensor.element.map_or("?", |element| element.name());
    match &tensor.shape {
        Some(shape) => format!("{element}{shape:?}"),
        None => format!("{element}?"),
    }
}

#[test]
fn every_tensor_of_real_graphs_is_as_the_runtime_had_it() {
    let mut models = 0;
    for entry in fs::read_dir("testdata/shapes").expect("the measured shapes") {
        let path = entry.expect("a file").path();
        let model = path.file_stem().and_then(|s| s.to_str()).expect("a name");
        let graph = inferred(model);
        let measured = fs::read_to_string(&path).expect("text");
        assert_eq!(measured.lines().count(), graph.node_count(), "{model}");
        for (line, &id) in measured.lines().zip(graph.order()) {
            let node = graph.node(id);
            let (name, expected) = line.split_once('\t').expect("a name and outputs");
            assert_eq!(node.name, name, "{model}");
            let outputs: Vec<String> = node.writes().map(|id| described(&graph, id)).collect();
            assert_eq!(
                outputs.join("\t"),
                expected,
                "{model}: {name} ({})",
                node.op_type
            );
        }
        for id in graph.tensor_ids() {
            assert!(
                graph.tensor(id).bytes().is_some(),
                "{model}: {}",
                graph.tensor(id).name
            );
        }
        models += 1;
    }
    assert_eq!(models, 5);
}
