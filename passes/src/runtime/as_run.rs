//! The graph as it runs at the level that is promised, node by node, for whoever looks for a plan.

use std::borrow::Cow;

use super::Runtime;
use super::casting::are_there;
use super::fusing::Fusing;
use super::known_shapes::runtime_shapes;
use super::skeleton::Skeleton;
use crate::graph::{Graph, Node, NodeId, TensorId, Uses};
use crate::operators::{self, Provider};

/// The graph in which nodes that others take in at that level are an Identity: a Transpose, a multiplication by a number or an
/// activation, and what is computed before the first step. What such a node writes is never there beside what it reads, so both are
/// one buffer to the search. A copy of the node is taken in as the node itself is, and a copy of what it reads brings one along.
/// A product that reads past such a multiplication, which stays for others, reads what that reads besides, as a subgraph would.
///
/// The graph itself where it runs as it is, or runs as it is in some session that is promised; and where the runtime inserts casts.
/// Nodes of which there is no copy stay.
pub(crate) fn as_run(
    graph: &Graph,
    provider: Provider,
    runtime: Runtime,
    is_copied: impl Fn(NodeId) -> bool,
) -> Cow<'_, Graph> {
    let mut run = Cow::Borrowed(graph);
    let Fused { mut taken, past } = fused(graph, provider, runtime);
    taken.retain(|&(id, _)| is_copied(id));
    for (id, input) in taken {
        let node = graph.node(id);
        let name = node.name.clone();
        let (read, written) = (vec![node.input(input)], vec![node.output(0)]);
        *run.to_mut().node_mut(id) = Node::new(name, "", "Identity", read, written);
    }
    for (id, read) in past {
        run.to_mut().node_mut(id).captures.push(read);
    }
    run
}

/// What becomes of nodes at a level.
#[derive(Default)]
struct Fused {
    /// The nodes that others take in, each with the input that it makes something else of.
    taken: Vec<(NodeId, usize)>,
    /// Products, and what they read past a multiplication that stays.
    past: Vec<(NodeId, TensorId)>,
}

fn fused(graph: &Graph, provider: Provider, runtime: Runtime) -> Fused {
    let Some(level) = runtime.promise.level.filter(|_| !are_there(graph)) else {
        return Fused::default();
    };
    let skeleton = Skeleton::without_costs(graph, &runtime_shapes(graph), provider);
    let skeleton = skeleton.run_by(runtime.release);
    let (forms, levels) = skeleton.optimized_by_level();
    let Some((form, left)) = levels.at(level).and_then(|form| forms.get(form)) else {
        return Fused::default();
    };
    let mut is_left = vec![false; skeleton.len()];
    let mut is_there = vec![false; skeleton.size.len()];
    for (node, &position) in left.iter().enumerate() {
        is_left[position as usize] = true;
        for &written in form.writes.get(node) {
            is_there[written as usize] = true;
        }
    }
    let (uses, positions) = (Uses::of(graph), graph.positions());
    let kind = |id: NodeId| skeleton.fusing[positions[id.index()] as usize];
    // Others read the result of an equal node where this one is gone.
    let reads_past = |id: &NodeId| {
        matches!(
            kind(*id),
            Fusing::Product { .. }
                | Fusing::Gemm
                | Fusing::Forwards
                | Fusing::Transposes(_)
                | Fusing::Scales { .. }
        )
    };
    let stays = |id: NodeId| is_left[positions[id.index()] as usize];
    let is_scaled = |read: TensorId| {
        let mut readers = uses.readers(read).iter();
        readers.any(|&id| {
            let scales = |input| graph.node(id).input(input) == Some(read);
            stays(id) && matches!(kind(id), Fusing::Scales { input, .. } if scales(input))
        })
    };
    let mut past = Vec::new();
    for (node, &position) in left.iter().enumerate() {
        let id = graph.order()[position as usize];
        if !matches!(kind(id), Fusing::Product { .. }) {
            continue;
        }
        let reads = form.reads.get(node).iter().map(|&read| TensorId(read));
        let reads = reads.filter(|read| read.index() < graph.tensor_count());
        let is_other = |&read: &TensorId| !graph.node(id).reads().any(|own| own == read);
        past.extend(
            reads
                .filter(is_other)
                .filter(|&read| is_scaled(read))
                .map(|read| (id, read)),
        );
    }
    let gone = graph.order().iter().copied().filter(|&id| !stays(id));
    let taken = gone.filter_map(|id| {
        let input = match kind(id) {
            Fusing::Transposes(_) | Fusing::Activation => 0,
            Fusing::Scales { input, .. } | Fusing::Idles { input } => input,
            // The session has it, as it has what it follows from.
            Fusing::Folded if !operators::reads_only_shape(graph.node(id)) => 0,
            _ => return None,
        };
        let (read, written) = (graph.node(id).input(input)?, graph.node(id).output(0)?);
        let is_taken = match is_there[written.index()] {
            // By what it reads, which writes its result.
            true => uses.producer(read).is_some() && !is_there[read.index()],
            // By its readers.
            false => {
                let equal = skeleton.equal[positions[id.index()] as usize];
                let is_session_s = kind(id) == Fusing::Folded;
                is_session_s || equal == 0 || uses.readers(written).iter().all(reads_past)
            }
        };
        is_taken.then_some((id, input))
    });
    let taken = taken.collect();
    Fused { taken, past }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::level::Level;
    use crate::runtime::promise::Promise;

    /// What becomes an Identity at that level, by what it writes.
    fn taken(text: &str, level: Option<Level>) -> String {
        let graph = Graph::parse(text).unwrap();
        let promise = Promise { order: None, level };
        let runtime = Runtime {
            promise,
            ..Runtime::LEAN
        };
        let run = as_run(&graph, Provider::Cpu, runtime, |_| true);
        let changed = graph
            .order()
            .iter()
            .map(|&id| (graph.node(id), run.node(id)));
        let changed = changed.filter(|(before, now)| before.op_type != now.op_type);
        let names = changed.flat_map(|(_, now)| {
            assert_eq!(now.op_type, "Identity");
            now.reads()
                .chain(now.writes())
                .map(|t| graph.tensor(t).name.clone())
        });
        names.collect::<Vec<_>>().join(" ")
    }

    const PRODUCT: &str = "g (float[4,4] x) => (float[4,4] z)
        <float[1] two = {2}, float[4,4] e, float[4,4] t, float[4,4] s, float[4,4] p, float[4,4] h>
        { e = Exp(x) t = Transpose <perm = [1, 0]> (e) s = Mul(two, e) p = MatMul(s, t) h = Div(p, two) z = Exp(h) }";

    #[test]
    fn what_a_product_does_by_the_way_is_no_node_of_its_own() {
        let all = Some(Level::EnableAll);
        assert_eq!(taken(PRODUCT, all), "e t e s p h");
        // Not below the level that does it, nor where a budget holds at every level.
        assert_eq!(taken(PRODUCT, Some(Level::EnableBasic)), "");
        assert_eq!(taken(PRODUCT, Some(Level::DisableAll)), "");
        assert_eq!(taken(PRODUCT, None), "");
        // Who reads it besides needs it.
        let read = PRODUCT.replace("z = Exp(h)", "z = Add(h, t)");
        assert_eq!(taken(&read, all), "e s p h");
    }

    #[test]
    fn an_activation_behind_a_convolution_is_no_node_of_its_own() {
        let text = "g (float[1,1,4,4] x, float[1,1,1,1] w) => (float[1,1,4,4] z)
            <float[1,1,4,4] c, float[1,1,4,4] r>
            { c = Conv(x, w) r = Relu(c) z = Exp(r) }";
        assert_eq!(taken(text, Some(Level::EnableAll)), "c r");
        let twice = text.replace("Exp(r)", "Add(r, c)");
        assert_eq!(taken(&twice, Some(Level::EnableAll)), "");
    }

    #[test]
    fn what_follows_from_constants_takes_nothing() {
        let text = "g (float[4,4] x) => (float[4,4] z, float[4,4] y)
            <float[4,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, float[4,4] t, float[4,4] u>
            { t = Transpose <perm = [1, 0]> (w) u = Exp(t) z = MatMul(x, u) y = Exp(x) }";
        assert_eq!(taken(text, Some(Level::EnableBasic)), "w t t u");
        assert_eq!(taken(text, Some(Level::DisableAll)), "");
        assert_eq!(taken(text, None), "");
    }

    #[test]
    fn of_equal_nodes_one_stays_for_those_that_need_it() {
        let text = |z: &str, y: &str| {
            format!(
                "g (float[4,4] x) => (float[4,4] z, float[4,4] y)
                <float[4,4] e, float[4,4] t, float[4,4] u>
                {{ e = Exp(x) t = Transpose <perm = [1, 0]> (e) u = Transpose <perm = [1, 0]> (e) z = {z} y = {y} }}"
            )
        };
        let all = Some(Level::EnableAll);
        assert_eq!(taken(&text("MatMul(e, t)", "Exp(u)"), all), "e t");
        // Who does not read past it reads the other one.
        assert_eq!(taken(&text("Exp(t)", "MatMul(e, u)"), all), "");
    }

    #[test]
    fn a_product_reads_past_a_multiplication_that_stays() {
        let reads = |y: &str, level| {
            let graph = Graph::parse(&format!(
                "g (float[4,4] x) => (float[4,4] z, float[4,4] y)
                <float[1] two = {{2}}, float[4,4] e, float[4,4] s>
                {{ e = Exp(x) s = Mul(two, e) [z] z = MatMul(x, s) y = {y} }}"
            ));
            let graph = graph.unwrap();
            let promise = Promise {
                order: None,
                level: Some(level),
            };
            let runtime = Runtime {
                promise,
                ..Runtime::LEAN
            };
            let run = as_run(&graph, Provider::Cpu, runtime, |_| true);
            let product = run.nodes().find(|node| node.name == "z").unwrap();
            let reads = product.reads().map(|read| graph.tensor(read).name.clone());
            reads.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(reads("Exp(s)", Level::EnableAll), "x s e");
        assert_eq!(reads("Exp(s)", Level::EnableBasic), "x s");
        // Nobody else reads it: it is an Identity.
        assert_eq!(reads("Exp(x)", Level::EnableAll), "x s");
    }
}
