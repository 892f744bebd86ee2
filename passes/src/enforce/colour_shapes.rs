//! Tells ONNX Runtime's memory planner which tensors may share memory, by the names of their
//! dimensions.
//!
//! In its default settings the runtime hands a dead tensor's memory to the next one with the same
//! declared shape, and keeps it in between; and it lays whatever has a known size out in one block
//! that is there for the whole step. Either undoes much of what a plan saves: a rewritten ResNet-50 takes
//! 250 MB instead of 177. It compares dimensions by name. So a name that no other tensor has keeps
//! a tensor from being paired, and a name that no input has keeps it out of the block: its memory
//! is taken when it is written and given back after its last read, as with both settings off.
//! Results do not depend on names.
//!
//! A dimension that the runtime can work out as a number cannot be named (numbers win over names when
//! it infers shapes), so tensors with the shape of a weight stay as they are. So do those whose shape
//! is known from their declaration alone, for want of a rule: who reads the file needs it. Where such a declaration has a name
//! that no input has, the first tensor whose size follows keeps it: it says what size that stands for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;

use crate::bytes::Bytes;
use crate::graph::{Dimension, Graph, Node, TensorId, TensorKind, Uses};
use crate::operators::{self, Provider, StandIn};
use crate::pass::{Changed, Pass};
use crate::runtime::fused_pairs::{normalized_at_once, sum_of_convolution, sum_of_product};
use crate::runtime::fusing::Fusing;
use crate::runtime::known_shapes::{is_known_to_equal, runtime_shapes};
use crate::runtime::moving::KnownDimensions;
use crate::runtime::optimized_shapes::runtime_shapes_once_optimized;
use crate::runtime::order::{ExecutionOrder, execution_order};
use crate::runtime::promise::Promise;
use crate::runtime::skeleton::Skeleton;
use crate::runtime::{Release, Runtime, allocation};

/// What the names begin with.
pub const PREFIX: &str = "memory_";

/// Smaller tensors are not worth a name.
pub const COLOURED_FROM: Bytes = Bytes(4096);

/// **Does**: gives the first dimension that is not a number a name of its own, in every large tensor
/// that the runtime allocates; the same name where a result is computed in place.
/// **Needs**: concrete shapes; the nodes in their final order.
/// **Keeps**: nodes, graph inputs and outputs, and every dimension that is a number.
pub struct ColourShapes {
    /// Who runs the graph.
    pub provider: Provider,
    /// By what, and in which sessions a budget has to hold.
    pub runtime: Runtime,
}

impl Pass for ColourShapes {
    const NAME: &str = "colour-shapes";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let shapes = runtime_shapes(graph);
        let skeleton = Skeleton::without_costs(graph, &shapes, self.provider);
        let skeleton = skeleton.run_by(self.runtime.release);
        let groups = in_place_groups(&skeleton, self.runtime.promise);
        let names = names(graph, &shapes, &groups, self.runtime.release);
        let changed = Changed::from(!names.is_empty());
        for (id, shape) in names {
            graph.tensor_mut(id).declared = Some(shape);
        }
        Ok(changed)
    }
}

/// The shapes that the barriers' choice goes by. Barriers decide what is computed in place of what. In one session, what is shares its
/// buffer whatever it is called, and nothing else does once the pass has run; in several, it gets the names of the graph without barriers.
pub(crate) fn names_before_barriers(
    graph: &Graph,
    skeleton: &Skeleton,
    shapes: &[Option<Vec<Dimension>>],
    promise: Promise,
) -> BTreeMap<TensorId, Vec<Dimension>> {
    let groups = match promise.is_one_session() {
        true => (0..skeleton.size.len() as u32).collect(),
        false => in_place_groups(skeleton, promise),
    };
    names(graph, shapes, &groups, skeleton.release)
}

/// The shapes that the pass declares; `shapes` are what the runtime knows without, and tensors of equal `groups` get equal names.
fn names(
    graph: &Graph,
    shapes: &[Option<Vec<Dimension>>],
    groups: &[u32],
    release: &Release,
) -> BTreeMap<TensorId, Vec<Dimension>> {
    let (groups, summands) = match release.trains {
        true => (groups.to_vec(), Vec::new()),
        false => with_summands(graph, shapes, groups, release),
    };
    let inferred = inferred(graph, release);
    let needed = needed(graph, &inferred);
    // The axis that gets a name.
    let free_axis = |id: TensorId| {
        let large = graph.tensor(id).bytes() >= Some(COLOURED_FROM);
        let value = graph.tensor(id).kind == TensorKind::Value && !graph.outputs.contains(&id);
        let value = value && inferred[id.index()];
        let shape = shapes[id.index()].as_ref().filter(|_| large && value)?;
        let old = graph.tensor(id).declared.as_deref().unwrap_or_default();
        let is_needed = |axis: usize| {
            let name = old.get(axis).and_then(Dimension::name);
            name.is_some_and(|name| needed.get(name) == Some(&id))
        };
        let is_free =
            |(axis, dimension): &(usize, &Dimension)| !dimension.is_number() && !is_needed(*axis);
        shape.iter().enumerate().find(is_free).map(|(axis, _)| axis)
    };
    // Where one summand keeps its name, so do the other one and what is computed in its place.
    let kept = summands
        .iter()
        .filter(|pair| pair.iter().any(|&id| free_axis(id).is_none()));
    let kept: BTreeSet<u32> = kept.flatten().map(|id| groups[id.index()]).collect();
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    let mut declared = BTreeMap::new();
    for id in graph.tensor_ids() {
        let Some((axis, shape)) = free_axis(id).zip(shapes[id.index()].as_ref()) else {
            continue;
        };
        let (group, mut shape) = (groups[id.index()], shape.clone());
        if kept.contains(&group) {
            if shape[axis] == Dimension::Unknown {
                continue;
            }
        } else {
            let next = names.len() + 1;
            let name = names
                .entry(group)
                .or_insert_with(|| format!("{PREFIX}{next}"));
            shape[axis] = Dimension::Symbol(name.clone());
        }
        declared.insert(id, shape);
    }
    declared
}

/// The names of dimensions by which a declaration tells a shape that nothing else tells, but for those of inputs, which
/// keep them; each with the first tensor whose node tells what size it stands for.
fn needed<'g>(graph: &'g Graph, inferred: &[bool]) -> HashMap<&'g str, TensorId> {
    let names = |id: TensorId| {
        let declared = graph.tensor(id).declared.iter().flatten();
        declared.filter_map(Dimension::name)
    };
    let of_inputs: BTreeSet<&str> = graph.inputs.iter().flat_map(|&id| names(id)).collect();
    let declared_alone = graph.tensor_ids().filter(|&id| !inferred[id.index()]);
    let needed: BTreeSet<&str> = declared_alone.flat_map(names).collect();
    let written = graph.order().iter().flat_map(|&id| graph.node(id).writes());
    let mut first = HashMap::new();
    for id in written.filter(|id| inferred[id.index()]) {
        for name in names(id).filter(|name| needed.contains(name) && !of_inputs.contains(name)) {
            first.entry(name).or_insert(id);
        }
    }
    first
}

/// By tensor: a number, the same for what is computed in place of each other where a budget has to hold. In other sessions, what has
/// another name takes memory of its own.
fn in_place_groups(skeleton: &Skeleton, promise: Promise) -> Vec<u32> {
    let mut parent: Vec<u32> = (0..skeleton.size.len() as u32).collect();
    let mut join = |written: u32, read: u32| {
        let (written, read) = (root(&mut parent, written), root(&mut parent, read));
        parent[written as usize] = read;
    };
    let names = skeleton.names();
    let (optimized, levels) = skeleton.optimized_by_level();
    let plain = skeleton.with_casts();
    let plain = plain.as_ref().map_or(skeleton, |(run, _)| run);
    let forms = optimized.iter().map(|(form, _)| form).enumerate();
    let forms = forms.map(|(number, form)| (Some(number), form));
    for (number, form) in std::iter::once((None, plain)).chain(forms) {
        for &order in ExecutionOrder::of(form) {
            if !promise.holds_in(order, |level| levels.run_at(level, number)) {
                continue;
            }
            let order = execution_order(form, order);
            for (written, read) in allocation::in_place(form, &order) {
                join(names[written as usize], names[read as usize]);
            }
        }
    }
    // What an Identity forwards stands in for its result once the runtime takes the node out.
    let forwards = |node: &usize| {
        matches!(
            skeleton.fusing[*node],
            Fusing::Forwards | Fusing::Idles { .. }
        )
    };
    for node in (0..skeleton.len()).filter(forwards) {
        for share in skeleton.shares.get(node) {
            join(share.written, share.read);
        }
    }
    let tensors = 0..parent.len() as u32;
    tensors.map(|tensor| root(&mut parent, tensor)).collect()
}

/// By tensor: does its shape follow from what its node reads? Whoever reads the file does not go by numbers in a tensor of which the file
/// has to say the size, or that may be smaller in a step, so they do not count.
fn inferred(graph: &Graph, release: &Release) -> Vec<bool> {
    let uses = Uses::of(graph);
    let mut inferred = vec![false; graph.tensor_count()];
    let written = graph.tensor_ids().map(|id| uses.producer(id).is_some());
    // By tensor: is nothing of what it follows from said by the file alone?
    let mut follows: Vec<bool> = written.map(|written| !written).collect();
    for node in graph.nodes() {
        if release.is_barrier(node) {
            // What it hands on, whatever it waits for.
            for (read, written) in node.inputs.iter().zip(&node.outputs) {
                if let (Some(read), Some(written)) = (read, written) {
                    inferred[written.index()] = true;
                    follows[written.index()] = follows[read.index()];
                }
            }
            continue;
        }
        let is_trusted = |read: TensorId| follows[read.index()];
        let holds_doubtful =
            |read: TensorId| graph.tensor(read).constant.is_some() && !is_trusted(read);
        let known = match node.reads().any(holds_doubtful) {
            true => operators::infer_instead(graph, node, &stand_ins(graph, node, is_trusted)),
            false => operators::infer(graph, &uses, node).and_then(Result::ok),
        };
        let all_follows = node.bodies.is_empty() && node.reads().all(is_trusted);
        for (output, known) in node.outputs.iter().zip(known.into_iter().flatten()) {
            if let (Some(output), Some(_)) = (output, known) {
                inferred[output.index()] = true;
                follows[output.index()] = all_follows;
            }
        }
    }
    inferred
}

/// What the node reads, each tensor once, with the numbers in those that are trusted.
fn stand_ins(graph: &Graph, node: &Node, is_trusted: impl Fn(TensorId) -> bool) -> Vec<StandIn> {
    let reads: BTreeSet<TensorId> = node.reads().collect();
    let stand_in = |tensor: TensorId| StandIn {
        tensor,
        shape: graph.tensor(tensor).shape.clone(),
        keeps_contents: is_trusted(tensor),
    };
    reads.into_iter().map(stand_in).collect()
}

/// The same, with one number for both summands where the runtime makes one node of the sum and the layer normalization behind it, or the
/// convolution or the product of matrices before it: it does only where it knows them to have the same shape (`shapes`), and rounds otherwise else (measured in 1.32.0). What a
/// barrier hands on lies where it did, whatever it is called. And all such pairs.
fn with_summands(
    graph: &Graph,
    shapes: &[KnownDimensions],
    groups: &[u32],
    release: &Release,
) -> (Vec<u32>, Vec<[TensorId; 2]>) {
    let uses = Uses::of(graph);
    let mut summands = Vec::new();
    let numbers = groups.iter().copied().max().map_or(0, |last| last + 1);
    let mut parent: Vec<u32> = (0..numbers).collect();
    let mut handed_on = Vec::new();
    let mut optimized = None;
    for &id in graph.order() {
        let convolved = sum_of_convolution(graph, &uses, id);
        let node = graph.node(id);
        let convolved = convolved.map(|of| (of.convolved, of.other));
        let normalized = normalized_at_once(graph, &uses, id)
            .and_then(|_| Some((node.input(0)?, node.input(1)?)));
        let added = node
            .output(0)
            .zip(sum_of_product(graph, &uses, id))
            .map(|(one, (_, other))| (one, other));
        let Some((one, other)) = convolved.or(normalized).or(added) else {
            continue;
        };
        let knows = |shapes: &[KnownDimensions]| is_known_to_equal(shapes, one, other);
        let once_optimized = || runtime_shapes_once_optimized(graph);
        if !knows(shapes) && !knows(optimized.get_or_insert_with(once_optimized)) {
            continue;
        }
        summands.push([one, other]);
        let by = uses.producer(other).map(|id| graph.node(id));
        if by.is_some_and(|by| release.is_barrier(by)) {
            handed_on.push((other, one));
            continue;
        }
        // Of a product that is no Gemm yet, the rows of what it reads tell.
        let rows = node
            .input(0)
            .filter(|_| added.is_some() && node.is("", "MatMul"));
        let one = root(&mut parent, groups[one.index()]);
        for other in [Some(other), rows].into_iter().flatten() {
            let other = root(&mut parent, groups[other.index()]);
            parent[other as usize] = one;
        }
    }
    let roots = groups.iter().map(|&group| root(&mut parent, group));
    let mut groups: Vec<u32> = roots.collect();
    for (other, one) in handed_on {
        groups[one.index()] = groups[other.index()];
    }
    (groups, summands)
}

fn root(parent: &mut [u32], tensor: u32) -> u32 {
    let mut root = tensor;
    while parent[root as usize] != root {
        let above = parent[parent[root as usize] as usize];
        parent[root as usize] = above;
        root = above;
    }
    root
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cost::Cost;
    use crate::enforce::forward_summands::{ForwardSummands, Sums};
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::STOCK;
    use crate::runtime::barrier::BarrierWriter;
    use crate::runtime::executions::Executions;
    use crate::runtime::level::Level;
    use crate::runtime::settings::RuntimeSettings;

    /// n = 1024: every tensor takes 4 KiB.
    const TEXT: &str = "g (float[n] x, int64[1] to) => (float[n] y)
        <float[n] a, float[n] b, float[n] c, float[n] d>
        { a = Exp(x) b = Relu(a) c = Exp(b) d = Exp(c) y = Exp(d) }";

    fn coloured(text: &str) -> (Graph, Graph) {
        let mut graph = Graph::parse(text).unwrap();
        let symbols = [("n".to_owned(), 1024)];
        let symbols = symbols.into_iter().filter(|_| text.contains("[n]"));
        let bindings = BTreeMap::from_iter(symbols);
        InferShapes { bindings }.run(&mut graph).unwrap();
        let before = graph.clone();
        let provider = Provider::Cpu;
        let Ok(_) = ColourShapes {
            provider,
            runtime: Runtime::DEFAULT,
        }
        .run(&mut graph);
        (before, graph)
    }

    fn profile(graph: &Graph, settings: RuntimeSettings) -> Vec<Bytes> {
        let costs = vec![Cost::default(); graph.node_count()];
        let mut all = Executions::of(graph, &crate::runtime::TRAINING, Provider::Cpu, &costs)
            .simulate(settings);
        all.swap_remove(0).1.profile
    }

    #[test]
    fn results_get_names_of_their_own_and_in_place_results_their_input_s() {
        let (_, graph) = coloured(TEXT);
        let name = |tensor: &str| {
            let id = graph.tensor_named(tensor).unwrap();
            format!("{:?}", graph.tensor(id).declared.as_ref().unwrap()[0])
        };
        let names = ["x", "a", "b", "c", "d", "y"].map(name);
        insta::assert_snapshot!(names.join(" "), @r#"Symbol("n") Symbol("memory_1") Symbol("memory_1") Symbol("memory_2") Symbol("memory_3") Symbol("n")"#);
    }

    #[test]
    fn with_names_the_default_settings_need_what_the_lean_ones_do() {
        let (before, graph) = coloured(TEXT);
        let (lean, default) = (RuntimeSettings::LEAN, RuntimeSettings::DEFAULT);
        assert_eq!(profile(&graph, lean), profile(&before, lean));
        assert_eq!(profile(&graph, default), profile(&before, lean));
        // Two blocks of 4 KiB for the whole step, and y.
        assert_ne!(profile(&before, default), profile(&before, lean));
    }

    #[test]
    fn what_only_its_declaration_tells_keeps_it() {
        let (_, graph) = coloured(&TEXT.replace("c = Exp(b)", "c = AveragePoolGrad(b)"));
        let declared = |tensor: &str| {
            let id = graph.tensor_named(tensor).unwrap();
            graph.tensor(id).declared.as_ref().unwrap()[0].clone()
        };
        assert_eq!(declared("c"), Dimension::Symbol("n".to_owned()));
        assert_ne!(declared("a"), Dimension::Symbol("n".to_owned()));
    }

    #[test]
    fn a_name_that_only_a_declaration_needs_stays_where_its_size_follows_first() {
        // Only that a and b are [k] as well tells what k is in c, which has no rule.
        let text = "g (float[n] x, int64[1] to) => (float[n] y)
            <float[k] a, float[k] b, float[k] c, float[k] d>
            { a = Exp(x) b = Exp(a) c = AveragePoolGrad(b) d = Exp(c) y = Exp(d) }";
        let (_, graph) = coloured(text);
        let declared = |tensor: &str| {
            let id = graph.tensor_named(tensor).unwrap();
            graph.tensor(id).declared.as_ref().unwrap()[0].clone()
        };
        // The first one whose size follows is enough for that.
        let name = |name: &str| Dimension::Symbol(name.to_owned());
        let names = [name("k"), name("memory_1"), name("k")];
        assert_eq!(["a", "b", "c"].map(declared), names);
        // Read back, the shapes are the same.
        let mut again = graph.clone();
        let bindings = BTreeMap::from([("n".to_owned(), 1024)]);
        assert!(InferShapes { bindings }.run(&mut again).is_ok());
    }

    /// In builds without training, what a barrier hands on has a shape that only readers of the file know.
    #[test]
    fn what_is_computed_in_place_behind_a_barrier_is_called_as_what_that_hands_on() {
        let text = TEXT.replace("b = Relu(a)", "b = Exp(a)");
        let (mut graph, _) = coloured(&text.replace("c = Exp(b)", "c = Relu(b)"));
        let of = |name: &str| graph.tensor_named(name).unwrap();
        let (a, b, c) = (of("a"), of("b"), of("c"));
        let (mut before, mut order) = (graph.order().to_vec(), Vec::new());
        let after = before.split_off(2);
        order.append(&mut before);
        let passed = BarrierWriter::new(&STOCK, &graph).add(&mut graph, &mut order, b, &[a]);
        graph.node_mut(after[0]).inputs[0] = Some(passed);
        graph.set_order(order.into_iter().chain(after).collect());
        let Ok(_) = ColourShapes {
            provider: Provider::Cpu,
            runtime: STOCK.with(RuntimeSettings::DEFAULT),
        }
        .run(&mut graph);
        let name = |id: TensorId| graph.tensor(id).declared.as_ref().unwrap()[0].clone();
        assert_eq!(name(passed), name(c));
        assert_ne!(name(b), name(a));
        assert!(matches!(name(c), Dimension::Symbol(name) if name.starts_with(PREFIX)));
    }

    /// Else 1.32.0 adds first and normalizes then, and rounds twice.
    #[test]
    fn what_is_added_and_normalized_at_once_keeps_equal_names() {
        let text = "g (float[n] x, float[4] s) => (float[n] y) <float[n] a, float[n] b, float[n] c, float[n] d>
            { a = Exp(x) b = Log(x) c = Add(a, b) d = LayerNormalization(c, s, s) y = Exp(d) }";
        let is_same = |release: &'static Release| {
            let (mut graph, _) = coloured(text);
            let runtime = release.with(RuntimeSettings::DEFAULT);
            let provider = Provider::Cpu;
            let Ok(_) = ColourShapes { provider, runtime }.run(&mut graph);
            let of = |name: &str| graph.tensor(graph.tensor_named(name).unwrap());
            of("a").declared == of("b").declared
        };
        assert!(is_same(&STOCK));
        assert!(!is_same(&crate::runtime::TRAINING));
    }

    /// An input keeps its name, so what is added to it has that as well.
    #[test]
    fn what_is_added_to_an_input_and_normalized_at_once_keeps_the_name_of_that() {
        let text = "g (float[n] x, float[4] s) => (float[n] y) <float[n] a, float[n] b, float[n] c, float[n] d>
            { a = Exp(x) b = Log(a) c = Add(b, x) d = LayerNormalization(c, s, s) y = Exp(d) }";
        let (mut graph, _) = coloured(text);
        let runtime = STOCK.with(RuntimeSettings::DEFAULT);
        let provider = Provider::Cpu;
        let Ok(_) = ColourShapes { provider, runtime }.run(&mut graph);
        let of = |name: &str| &graph.tensor(graph.tensor_named(name).unwrap()).declared;
        assert_eq!(of("b"), of("x"));
        assert_ne!(of("a"), of("x"));
    }

    /// Else a step takes an image more than the choice of barriers goes by.
    #[test]
    fn what_a_convolution_adds_keeps_the_name_of_what_is_written_in_its_place() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[N,4,16,16] x, float[4,4,1,1] w, float[4] v) => (float[N,4,16,16] y)
            <float[N,4,16,16] a, float[N,4,16,16] c, float[N,4,16,16] s> { a = Exp(x) c = Conv(x, w, v) s = Add(a, c) y = Exp(s) }"#;
        let mut graph = Graph::parse(text).unwrap();
        let bindings = BTreeMap::from([("N".to_owned(), 8)]);
        InferShapes { bindings }.run(&mut graph).unwrap();
        let sums = ForwardSummands {
            provider: Provider::Cpu,
            release: &STOCK,
            sums: Sums::All,
        };
        let Ok(_) = sums.run(&mut graph);
        let promise = Promise {
            order: Some(ExecutionOrder::Default),
            level: Some(Level::EnableAll),
        };
        let runtime = Runtime {
            promise,
            ..STOCK.with(RuntimeSettings::DEFAULT)
        };
        let provider = Provider::Cpu;
        let Ok(_) = ColourShapes { provider, runtime }.run(&mut graph);
        let sum = graph.nodes().find(|node| node.is("", "Add"));
        let names = sum
            .unwrap()
            .reads()
            .chain(sum.unwrap().writes())
            .map(|id| graph.tensor(id).declared.as_ref().unwrap()[0].clone());
        let names: BTreeSet<Dimension> = names.collect();
        assert!(
            matches!(names.iter().collect::<Vec<_>>()[..], [Dimension::Symbol(name)] if name.starts_with(PREFIX)),
            "{names:?}"
        );
    }

    /// Else 1.32.0 multiplies first and adds then, and rounds twice.
    #[test]
    fn what_a_product_of_matrices_adds_keeps_equal_names() {
        let is_same = |release: &'static Release, product: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[n,4] x, float[4,4] w) => (float[n,4] y)
                <float[n,4] a, float[n,4] h, float[n,4] b, float[n,4] c> {{ a = Exp(x) h = Neg(x) b = {product} y = Exp(c) }}"#
            );
            let mut graph = Graph::parse(&text).unwrap();
            let bindings = BTreeMap::from([("n".to_owned(), 1024)]);
            InferShapes { bindings }.run(&mut graph).unwrap();
            let runtime = release.with(RuntimeSettings::DEFAULT);
            let provider = Provider::Cpu;
            let Ok(_) = ColourShapes { provider, runtime }.run(&mut graph);
            let of = |name: &str| &graph.tensor(graph.tensor_named(name).unwrap()).declared;
            of("a") == of("b") && (!product.starts_with("MatMul") || of("h") == of("a"))
        };
        for product in ["Gemm(h, w) c = Sum(a, b)", "MatMul(h, w) c = Add(b, a)"] {
            assert!(is_same(&STOCK, product), "{product}");
            assert!(!is_same(&crate::runtime::TRAINING, product), "{product}");
        }
        assert!(!is_same(&STOCK, "MatMul(h, w) c = Sum(b, a)"));
    }

    #[test]
    fn names_are_shared_where_the_budget_has_to_hold() {
        // In DEFAULT order, the Relu runs before the other reader of a.
        let text = "g (float[n] x) => (float[n] y) <float[n] a, float[n] b, float[n] c>
            { a = Exp(x) c = Tanh(a) b = Relu(a) y = Sum(b, c) }";
        let names = |promise: Promise| {
            let (mut graph, _) = coloured(text);
            let runtime = Runtime {
                promise,
                ..Runtime::DEFAULT
            };
            let provider = Provider::Cpu;
            let Ok(_) = ColourShapes { provider, runtime }.run(&mut graph);
            let name = |name: &str| {
                let id = graph.tensor_named(name).unwrap();
                graph.tensor(id).declared.as_ref().unwrap()[0].clone()
            };
            ["a", "b", "c"].map(name)
        };
        let in_order = |order| {
            let [a, b, c] = names(Promise {
                order: Some(order),
                level: None,
            });
            [a == b, a == c, b == c]
        };
        let (default, priority) = (ExecutionOrder::Default, ExecutionOrder::PriorityBased);
        assert_ne!(in_order(default), in_order(priority));
        let [a, b, c] = names(Promise::ANY);
        assert!(a == b && b == c);
    }

    #[test]
    fn numbers_in_what_may_be_smaller_tell_no_reader_a_size() {
        // How many rows p has depends on c, so that of q only the file says that none is left out, and a and b keep their names.
        let text = r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
            g (float[n,4] x, bool[n] c, int64[n] i) => (float[n,8] y)
            <float[k,4] p, float[n,4] q, float[n,8] t, int64[2] sizes, float[n,4] a, float[n,4] b> {
                p = Compress <axis = 0> (x, c)
                q = Gather(p, i)
                t, sizes = com.microsoft.ConcatTraining <axis = 1> (q, q)
                a, b = com.microsoft.SplitTraining <axis = 1> (t, sizes)
                y = Concat <axis = 1> (b, a)
            }"#;
        let (_, graph) = coloured(text);
        let mut read = graph.clone();
        for id in graph.tensor_ids() {
            read.tensor_mut(id).shape = None;
            read.tensor_mut(id).constant = None;
        }
        let bindings = BTreeMap::from([("n".to_owned(), 1024)]);
        InferShapes { bindings }.run(&mut read).unwrap();
        let named = |tensor| graph.tensor_named(tensor).unwrap();
        for name in ["q", "t", "a", "b"] {
            assert_eq!(
                read.tensor(named(name)).shape,
                graph.tensor(named(name)).shape
            );
        }
        let declared = |name| &graph.tensor(named(name)).declared.as_ref().unwrap()[0];
        assert!(matches!(declared("t"), Dimension::Symbol(name) if name.starts_with(PREFIX)));
    }

    #[test]
    fn numbers_stay_numbers() {
        let text = TEXT.replace("float[n]", "float[2048]");
        let (before, graph) = coloured(&text);
        assert_eq!(before, graph);
    }
}
