//! The casts that the runtime puts around nodes which the CPU cannot compute in float16, and those that it takes out.
//!
//! Source: `InsertCastTransformer`, compared with the graphs that sessions save (docs/casts.md). It comes last, at every level,
//! behind the optimizations:
//!
//! 1. A node with a kernel for float16 is *forced* to float32 if whoever writes and reads its values in float16 has none.
//! 2. In DEFAULT order, each node without a kernel gets casts: of what it reads, one for all readers of a tensor; and of what it writes.
//!    They get the highest indices, in that sequence.
//! 3. By index, each cast is looked at with the casts that read it. Those that undo it go, their readers
//!    read what it reads; if only casts read it, it goes itself. A cast that loses bits and that the file has stays with all that it has,
//!    if a cast of the file that undoes it would lose bits the other way: what is rounded on purpose stays rounded, unless casts
//!    of the runtime alone read it.

use std::borrow::Cow;

use super::casting::{Casting, NO_TENSOR, are_there, halves, loses_bits};
use super::fused_graph::OptimizedGraph;
use super::fusing::Fusing;
use super::known_shapes::runtime_shapes;
use super::order::{ExecutionOrder, execution_order};
use super::skeleton::{Lists, Share, Skeleton};
use crate::graph::{ElementType, Graph, Node, TensorKind};
use crate::operators::Provider;

impl Skeleton {
    /// What runs of the graph, with the casts that the runtime inserts and without those that it takes out; `None` if
    /// that is the graph itself.
    pub(crate) fn with_casts(&self) -> Option<OptimizedGraph> {
        if self.casting.is_empty() {
            return None;
        }
        let mut run = CastedGraph::of(self);
        run.force_kernels();
        let inserted = run.insert();
        let removed = run.take_out();
        (inserted || removed).then(|| run.form())
    }

    /// The same, or the graph itself, with the positions of its nodes in it.
    pub(crate) fn into_run(self) -> OptimizedGraph {
        let as_it_is = (0..self.len() as u32).collect();
        self.with_casts().unwrap_or((self, as_it_is))
    }
}

/// The graph as the runtime computes it, node by node, for whoever looks for a plan: in float32 what it does not round, and as
/// an Identity what it takes out. Where both forms of a tensor are there, it is that in float32.
pub(crate) fn as_computed(graph: &Graph, provider: Provider) -> Cow<'_, Graph> {
    if provider != Provider::Cpu || !are_there(graph) {
        return Cow::Borrowed(graph);
    }
    let skeleton = Skeleton::without_costs(graph, &runtime_shapes(graph), provider);
    let mut run = CastedGraph::of(&skeleton);
    run.force_kernels();
    run.insert();
    run.take_out();
    let is_computed = |&reader: &u32| {
        let reader = run.nodes[reader as usize].as_ref();
        reader.is_some_and(|reader| !reader.own)
    };
    let is_read = |tensor: u32| run.readers[tensor as usize].iter().any(is_computed);
    let mut computed = graph.clone();
    for half in halves(graph) {
        let wide = skeleton.wide[half.index()];
        let value = graph.tensor(half).kind == TensorKind::Value;
        if value && (is_read(wide) || is_read(wide + 1)) {
            computed.tensor_mut(half).element = Some(ElementType::Float);
        }
    }
    for (position, &id) in graph.order().iter().enumerate() {
        let node = graph.node(id);
        let gone = run.nodes[position].is_none();
        if let (true, Some(read), Some(written)) = (gone, node.input(0), node.output(0)) {
            computed.tensor_mut(written).element = computed.tensor(read).element;
            let name = node.name.clone();
            let (read, written) = (vec![Some(read)], vec![Some(written)]);
            *computed.node_mut(id) = Node::new(name, "", "Identity", read, written);
        }
    }
    Cow::Owned(computed)
}

/// Who writes or reads a tensor, as far as it matters for casts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// A node without a kernel for float16.
    Wide,
    /// One that has a kernel and does not use it.
    Forced,
    /// One that uses its kernel.
    Kernel,
    /// One that is taken apart.
    Pieces,
    /// One of the file's casts.
    Cast { from: ElementType, to: ElementType },
}

/// Of each node of the file, in its order, which party it is; and whether it is one that would not use its kernel if its readers
/// were others.
pub(super) fn parties(graph: &Graph, skeleton: &Skeleton) -> Vec<(Party, bool)> {
    let mut run = CastedGraph::of(skeleton);
    run.force_kernels();
    let nodes = run.nodes.iter().flatten().zip(graph.order());
    let party = |(node, _): (&CastedNode<'_>, _)| {
        let party = match node.casting {
            Casting::Cast { from, to } => Party::Cast { from, to },
            Casting::Needs => Party::Wide,
            Casting::Pieces => Party::Pieces,
            Casting::Kernel { .. } if node.needs => Party::Forced,
            Casting::Kernel { .. } | Casting::No => Party::Kernel,
        };
        (party, run.could_be_forced(node) && !node.needs)
    };
    nodes.map(party).collect()
}

/// A node while casts come and go.
struct CastedNode<'s> {
    casting: Casting,
    /// Does the runtime insert it?
    own: bool,
    /// Has it no kernel, or is it not to use it?
    needs: bool,
    reads: Cow<'s, [u32]>,
    writes: Cow<'s, [u32]>,
    /// The node itself, or the one for which it is inserted.
    position: u32,
}

/// All nodes by index; `None` for those that went.
struct CastedGraph<'s> {
    skeleton: &'s Skeleton,
    nodes: Vec<Option<CastedNode<'s>>>,
    /// By tensor.
    producer: Vec<u32>,
    /// By tensor: who reads it; whoever reads it twice, twice.
    readers: Vec<Vec<u32>>,
}

impl<'s> CastedGraph<'s> {
    fn of(skeleton: &'s Skeleton) -> CastedGraph<'s> {
        let tensors = skeleton.size.len();
        let mut run = CastedGraph {
            skeleton,
            nodes: Vec::with_capacity(skeleton.len()),
            producer: vec![NO_TENSOR; tensors],
            readers: vec![Vec::new(); tensors],
        };
        for node in 0..skeleton.len() {
            let casting = skeleton.casting[node];
            run.add(CastedNode {
                casting,
                own: false,
                needs: !casting.has_kernel(),
                reads: skeleton.reads.get(node).into(),
                writes: skeleton.writes.get(node).into(),
                position: node as u32,
            });
        }
        run
    }

    fn add(&mut self, node: CastedNode<'s>) {
        let index = self.nodes.len() as u32;
        for &tensor in node.reads.iter() {
            self.readers[tensor as usize].push(index);
        }
        for &tensor in node.writes.iter() {
            self.producer[tensor as usize] = index;
        }
        self.nodes.push(Some(node));
    }

    fn is_half(&self, tensor: u32) -> bool {
        self.skeleton.wide[tensor as usize] != NO_TENSOR
    }

    fn needs(&self, node: u32) -> bool {
        let node = self.nodes.get(node as usize).and_then(Option::as_ref);
        node.is_some_and(|node| node.needs)
    }

    /// Of what a node with a kernel reads and writes, what the runtime looks at.
    fn looked_at(&self, all: &[u32], first: bool) -> Vec<u32> {
        let some = if first { &all[..all.len().min(1)] } else { all };
        some.iter().copied().filter(|&t| self.is_half(t)).collect()
    }

    /// Is it a kernel for float16 that reads what nodes without one write?
    fn could_be_forced(&self, node: &CastedNode<'_>) -> bool {
        let Casting::Kernel {
            any_inputs,
            any_outputs,
        } = node.casting
        else {
            return false;
        };
        let producer = |tensor: &u32| self.producer[*tensor as usize];
        let made_wide =
            |tensor: &u32| producer(tensor) == NO_TENSOR || self.needs(producer(tensor));
        let read = self.looked_at(&node.reads, any_inputs);
        node.reads.iter().any(|read| producer(read) != NO_TENSOR)
            && !read.is_empty()
            && !self.looked_at(&node.writes, any_outputs).is_empty()
            && read.iter().all(made_wide)
    }

    /// Kernels for float16 between nodes that have none are not used.
    fn force_kernels(&mut self) {
        for index in 0..self.nodes.len() {
            let Some(node) = &self.nodes[index] else {
                continue;
            };
            let Casting::Kernel { any_outputs, .. } = node.casting else {
                continue;
            };
            let is_output = |tensor: &u32| self.skeleton.output[*tensor as usize];
            let read_wide = |tensor: &u32| {
                self.readers[*tensor as usize]
                    .iter()
                    .all(|&r| self.needs(r))
            };
            let written = self.looked_at(&node.writes, any_outputs);
            let forced = self.could_be_forced(node)
                && !node.writes.iter().any(is_output)
                && written.iter().all(read_wide);
            if forced && let Some(node) = &mut self.nodes[index] {
                node.needs = true;
            }
        }
    }

    /// Puts casts around the nodes that need them. Are there any?
    fn insert(&mut self) -> bool {
        if !self.nodes.iter().flatten().any(|node| node.needs) {
            return false;
        }
        let mut made = vec![false; self.skeleton.size.len()];
        for index in execution_order(self.skeleton, ExecutionOrder::Default) {
            if self.needs(index) {
                self.wrap(index, &mut made);
            }
        }
        true
    }

    fn wrap(&mut self, index: u32, made: &mut [bool]) {
        let Some(node) = self.nodes[index as usize].take() else {
            return;
        };
        let cast = |from, to, read, written| CastedNode {
            casting: Casting::Cast { from, to },
            own: true,
            needs: false,
            reads: vec![read].into(),
            writes: vec![written].into(),
            position: node.position,
        };
        let (mut reads, mut writes) = (node.reads.to_vec(), node.writes.to_vec());
        let skeleton = self.skeleton;
        let is_half = |tensor: &u32| skeleton.wide[*tensor as usize] != NO_TENSOR;
        for tensor in reads.iter_mut().filter(|t| is_half(t)) {
            let wide = self.skeleton.wide[*tensor as usize];
            if !std::mem::replace(&mut made[*tensor as usize], true) {
                self.add(cast(
                    ElementType::Float16,
                    ElementType::Float,
                    *tensor,
                    wide,
                ));
            }
            self.readers[*tensor as usize].retain(|&reader| reader != index);
            self.readers[wide as usize].push(index);
            *tensor = wide;
        }
        for tensor in writes.iter_mut().filter(|t| is_half(t)) {
            let wide = self.skeleton.wide[*tensor as usize] + 1;
            self.add(cast(
                ElementType::Float,
                ElementType::Float16,
                wide,
                *tensor,
            ));
            self.producer[wide as usize] = index;
            *tensor = wide;
        }
        self.nodes[index as usize] = Some(CastedNode {
            reads: reads.into(),
            writes: writes.into(),
            ..node
        });
    }

    /// Takes out casts that others undo. Are there any?
    fn take_out(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.nodes.len() as u32 {
            any |= self.undone(index);
        }
        any
    }

    /// The cast with the index, what it reads and what it writes.
    fn cast(&self, index: u32) -> Option<(ElementType, ElementType, bool, u32, u32)> {
        let node = self.nodes[index as usize].as_ref()?;
        match (node.casting, &*node.reads, &*node.writes) {
            (Casting::Cast { from, to }, &[read], &[written]) => {
                Some((from, to, node.own, read, written))
            }
            _ => None,
        }
    }

    fn undone(&mut self, index: u32) -> bool {
        let Some((from, to, own, read, written)) = self.cast(index) else {
            return false;
        };
        let readers = self.readers[written as usize].clone();
        let is_output = |tensor: u32| self.skeleton.output[tensor as usize];
        let on_purpose = loses_bits(from, to, own);
        let (mut goes, mut stays) = (Vec::new(), Vec::new());
        for &reader in &readers {
            let Some((next_from, next_to, own, _, last)) = self.cast(reader) else {
                continue;
            };
            if on_purpose && loses_bits(next_to, next_from, own) {
                return false;
            }
            match !is_output(last) && from == next_to && to == next_from {
                true => goes.push(reader),
                false => stays.push(reader),
            }
        }
        for &reader in &goes {
            let Some(gone) = self.nodes[reader as usize].take() else {
                continue;
            };
            for &tensor in gone.writes.iter() {
                self.redirect(tensor, read);
            }
        }
        let all = !readers.is_empty() && goes.len() + stays.len() == readers.len();
        let goes_itself = all && !is_output(written);
        self.readers[written as usize].retain(|reader| !goes.contains(reader));
        if goes_itself {
            for reader in stays {
                if let Some(node) = &mut self.nodes[reader as usize]
                    && let Casting::Cast { from: source, .. } = &mut node.casting
                {
                    *source = from;
                }
            }
            self.redirect(written, read);
            self.readers[read as usize].retain(|&reader| reader != index);
            self.nodes[index as usize] = None;
        }
        goes_itself || !goes.is_empty()
    }

    /// Whoever reads a tensor reads another instead.
    fn redirect(&mut self, tensor: u32, instead: u32) {
        for reader in std::mem::take(&mut self.readers[tensor as usize]) {
            if let Some(node) = &mut self.nodes[reader as usize] {
                for read in node.reads.to_mut() {
                    if *read == tensor {
                        *read = instead;
                    }
                }
                self.readers[instead as usize].push(reader);
            }
        }
    }

    fn form(&self) -> OptimizedGraph {
        let from = self.skeleton;
        let nodes = self.nodes.len();
        let mut form = Skeleton {
            reads: Lists::with_capacity(nodes, from.reads.items()),
            writes: Lists::with_capacity(nodes, from.writes.items()),
            shares: Lists::with_capacity(nodes, from.shares.items()),
            size: from.size.clone(),
            owned: from.owned.clone(),
            output: from.output.clone(),
            wide: from.wide.clone(),
            known: from.known.clone(),
            moved: from.moved.clone(),
            sized: from.sized.clone(),
            rows: from.rows.clone(),
            ..Skeleton::default().run_by(from.release)
        };
        let mut positions = Vec::with_capacity(nodes);
        for node in self.nodes.iter().flatten() {
            let at = node.position as usize;
            if from.yield_op == Some(node.position) && !node.own {
                form.yield_op = Some(form.len() as u32);
            }
            form.reads.push(node.reads.iter().copied());
            form.writes.push(node.writes.iter().copied());
            form.shares.push(self.shares(node));
            let of = |all: &[u64]| if node.own { 0 } else { all[at] };
            form.workspace.push(of(&from.workspace));
            form.early.push(of(&from.early));
            form.reads_only_shape
                .push(!node.own && from.reads_only_shape[at]);
            form.fusing.push(Fusing::No);
            form.equal.push(0);
            form.inserted.push(node.own);
            // A cast of what is read stands before the first that reads it.
            let first = || {
                let read = &self.readers[node.writes[0] as usize];
                let readers = read.iter().filter_map(|&r| self.nodes[r as usize].as_ref());
                readers.map(|reader| reader.position).min()
            };
            let is_of_read = node.own && !self.is_half(node.writes[0]);
            let first = is_of_read.then(first).flatten();
            positions.push(first.unwrap_or(node.position));
        }
        (form, positions)
    }

    /// What shares memory in a node that reads and writes other tensors now.
    fn shares(&self, node: &CastedNode<'_>) -> Vec<Share> {
        let from = self.skeleton;
        let at = node.position as usize;
        if node.own {
            return Vec::new();
        }
        let now = |before: &[u32], now: &[u32], tensor: u32| {
            let place = before.iter().position(|&other| other == tensor);
            place.map_or(tensor, |place| now[place])
        };
        let fits = |share: &Share| {
            let [written, read] = [share.written, share.read].map(|tensor| tensor as usize);
            let known = from.known[written].is_some() && from.known[written] == from.known[read];
            share.always || known && from.size[written] == from.size[read]
        };
        let shares = from.shares.get(at).iter().map(|share| Share {
            written: now(from.writes.get(at), &node.writes, share.written),
            read: now(from.reads.get(at), &node.reads, share.read),
            ..*share
        });
        shares.filter(fits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::graph::TensorId;
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;

    /// Between two nodes in float32 what is declared of the tensor in float16 does not count (measured: dlrm in float16 took 64 KiB more in
    /// PRIORITY_BASED order, for a Relu behind a Gemm).
    #[test]
    fn what_is_computed_in_place_of_what_a_product_writes_has_the_name_of_its_rows() {
        let in_place = |rows: &str| {
            let text = format!(
                "<ir_version: 8, opset_import: [\"\" : 15]>
                g (float16[N,64] x, float16[64,64] w, float16[64] b) => (float16[N,64] y)
                <float16[{rows},64] a, float16[{rows},64] r> {{ a = Gemm (x, w, b) r = Relu (a) y = Sigmoid (r) }}"
            );
            let mut graph = Graph::parse(&text).unwrap();
            let bindings = [("N".to_owned(), 8)].into_iter().collect();
            InferShapes { bindings }.run(&mut graph).unwrap();
            let costs = vec![Cost::default(); graph.node_count()];
            let (form, _) = Skeleton::of(&graph, Provider::Cpu, &costs).into_run();
            let relu = (0..form.len()).filter(|&node| !form.shares.get(node).is_empty());
            relu.count()
        };
        // Relu and Sigmoid. Where the Relu's result has another name than the product's, neither is: the Sigmoid's has the product's.
        assert_eq!(in_place("N"), 2);
        assert_eq!(in_place("named"), 0);
    }

    /// What runs at ORT_DISABLE_ALL, by index: each node as what it writes and reads; `~` is what a cast makes of a tensor in
    /// float16, `^` what is cast to it.
    fn run(text: &str) -> String {
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let (form, _) = skeleton.into_run();
        let all = form.names();
        let name = |&tensor: &u32| {
            let of = all[tensor as usize];
            let name = &graph.tensor(TensorId(of)).name;
            let mark = match form.wide.get(of as usize) {
                Some(&wide) if wide == tensor => "~",
                Some(&wide) if wide != NO_TENSOR && wide + 1 == tensor => "^",
                _ => "",
            };
            format!("{name}{mark}")
        };
        let names = |tensors: &[u32]| tensors.iter().map(name).collect::<Vec<_>>().join(",");
        let nodes = (0..form.len()).map(|node| {
            let (writes, reads) = (form.writes.get(node), form.reads.get(node));
            format!("{}({})", names(writes), names(reads))
        });
        nodes.collect::<Vec<_>>().join(" ")
    }

    // All of these are what sessions of 1.19.2 saved.

    #[test]
    fn casts_of_the_file_round_as_it_says() {
        let text = "g (float[4] x) => (float[4] y) <float16[4] h, float[4] f>
            { h = Cast <to = 10>(x) f = Cast <to = 1>(h) y = Exp(f) }";
        assert_eq!(run(text), "h(x) f(h) y(f)");
        // But for those that lose nothing.
        let double = text.replace("float16", "double").replace("10", "11");
        assert_eq!(run(&double), "y(x)");
    }

    #[test]
    fn a_node_without_a_kernel_computes_between_casts_and_casts_that_undo_each_other_go() {
        let text = "g (float[4] x) => (float[4] y) <float16[4] h, float16[4] e, float[4] f>
            { h = Cast <to = 10>(x) e = Exp(h) f = Cast <to = 1>(e) y = Exp(f) }";
        assert_eq!(run(text), "e^(x) y(e^)");
    }

    #[test]
    fn what_the_file_rounds_and_widens_again_stays_rounded_for_all() {
        let text =
            "g (float[4] x) => (float[4] y, float[4] z) <float16[4] h, float16[4] e, float[4] f>
            { h = Cast <to = 10>(x) e = Exp(h) f = Cast <to = 1>(e) y = Exp(f) z = Cast <to = 1>(h) }";
        assert_eq!(run(text), "h(x) e^(h~) y(e^) z(h) h~(h)");
    }

    #[test]
    fn a_kernel_between_nodes_without_is_not_used() {
        for kernel in [
            "com.microsoft.PassThrough(h)",
            "Transpose<perm = [1, 0]>(h)",
            "Identity(h)",
        ] {
            let text = format!(
                "g (float16[4,4] x) => (float16[4,4] y) <float16[4,4] h, float16[4,4] e>
                {{ h = Exp(x) e = {kernel} y = Log(e) }}"
            );
            assert_eq!(run(&text), "h^(x~) e^(h^) y^(e^) x~(x) y(y^)");
        }
    }

    #[test]
    fn of_a_pass_through_the_first_input_counts() {
        let text = "g (float16[4] x) => (float16[4] y) <float16[4] h, float16[4] g, float16[4] e, float16[4] e2>
            { h = Exp(x) g = Exp(h) e, e2 = com.microsoft.PassThrough(h, g) y = Log(e) }";
        assert_eq!(
            run(text),
            "h^(x~) g^(h^) e^,e2^(h^,g^) y^(e^) x~(x) e2(e2^) y(y^)"
        );
    }

    #[test]
    fn a_kernel_that_reads_what_is_rounded_on_purpose_is_used() {
        let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y)
            <float16[4,4] h, float16[4,4] v, float16[4,4] g, float16[4,4] p, float16[4,4] e, float16[4,4] z, float[4,4] f>
            { h = Cast <to = 10>(x) v = Cast <to = 10>(w) g = MatMul(h, v) p = com.microsoft.PassThrough(h)
              e = MatMul(p, h) z = Add(g, e) f = Cast <to = 1>(z) y = Exp(f) }";
        assert_eq!(
            run(text),
            "h(x) g^(x,w) p(h) e^(p~,x) z^(g^,e^) y(z^) p~(p)"
        );
    }
}
