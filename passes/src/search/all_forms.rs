//! A graph in all its forms at once: as it is, and with every variant that nodes may be replaced by.
//!
//! The search decides on variants and copies together (Shah et al., MONeT, ICLR 2021). So the parts
//! of every variant are steps of one problem, of which only those of the chosen forms are active.

use crate::graph::{Graph, NodeId, Uses};
use crate::operators::variants::Variant;
use crate::operators::variants::nodes::{add_beside, fits_in_place};

/// Which form of a site: 0 is the node as it is.
pub(crate) type FormNumber = u8;

/// A graph with further nodes, the parts of variants. A tensor that several forms of a node write
/// has several producers: it is no graph that could be written.
pub struct AllForms {
    /// All nodes of all forms; the original's keep their numbers.
    pub graph: Graph,
    /// Ascending by node.
    pub(super) sites: Vec<ReplaceableNode>,
    /// How many nodes the original has.
    pub(super) nodes: usize,
}

/// A node that may be replaced.
pub(super) struct ReplaceableNode {
    pub(super) node: NodeId,
    /// The ways to replace it.
    pub(super) forms: Vec<SiteForm>,
}

/// One way to replace a node.
pub(super) struct SiteForm {
    pub(super) variant: &'static Variant,
    /// In the order in which they run.
    pub(super) parts: Vec<NodeId>,
    /// Which part gets the replaced node's number.
    pub(super) heir: usize,
}

/// At one place of the order: what stands before what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Just before the node that stands here reads it.
    Late,
    /// The node itself.
    Here,
    /// What replaces it.
    Instead,
    /// As soon as what it reads is there.
    Early,
}

impl AllForms {
    /// `graph`, in which each of the `offers` may be taken up, at most one for each node; but for those which, where the
    /// node stands in one of the `orders` of first computations, would read what is not there yet.
    pub fn of(
        graph: &Graph,
        offers: &[(NodeId, &'static Variant)],
        orders: &[Vec<NodeId>],
    ) -> AllForms {
        let uses = Uses::of(graph);
        let places: Vec<Vec<Option<usize>>> = orders
            .iter()
            .map(|order| {
                let mut places = vec![None; graph.node_count()];
                for (place, id) in order.iter().enumerate() {
                    places[id.index()] = Some(place);
                }
                places
            })
            .collect();
        let mut with = graph.clone();
        let mut offers = offers.to_vec();
        offers.sort_by_key(|&(node, _)| node);
        let mut sites: Vec<ReplaceableNode> = Vec::new();
        for (node, variant) in offers {
            let Some(parts) = variant.parts(graph, &uses, node) else {
                continue;
            };
            let fits = |places: &Vec<Option<usize>>| {
                fits_in_place(&uses, |id| places[id.index()], node, &parts)
            };
            if !places.iter().all(fits) {
                continue;
            }
            if sites.last().is_none_or(|site| site.node != node) {
                let forms = Vec::new();
                sites.push(ReplaceableNode { node, forms });
            }
            let site = sites.last_mut().expect("just added");
            let known: Vec<NodeId> = site.forms.iter().flat_map(|f| f.parts.clone()).collect();
            let (parts, heir) = add_beside(&mut with, node, &parts, &known);
            site.forms.push(SiteForm {
                variant,
                parts,
                heir,
            });
        }
        AllForms {
            graph: with,
            sites,
            nodes: graph.node_count(),
        }
    }

    /// Makes nodes what they are in `run`, the original as it runs, where no form reads, writes or replaces anything of that.
    pub fn run_as(&mut self, run: &Graph) {
        let is_site = |id: NodeId| self.sites.iter().any(|site| site.node == id);
        for (id, now) in run.listed().filter(|&(id, _)| !is_site(id)) {
            let captures = &mut self.graph.node_mut(id).captures;
            captures.clone_from(&now.captures);
        }
        let (with, before) = (Uses::of(&self.graph), Uses::of(run));
        let is_read_as_before = |tensor| {
            let readers = before.readers(tensor);
            with.readers(tensor) == readers && !readers.iter().any(|&id| is_site(id))
        };
        let changes = |id: &NodeId| {
            let now = run.node(*id);
            let (Some(read), Some(written)) = (now.input(0), now.output(0)) else {
                return false;
            };
            now.op_type != self.graph.node(*id).op_type
                && !is_site(*id)
                && is_read_as_before(written)
                // Of what alone reads the result of the node that takes it in.
                && (before.readers(read).len() > 1 || is_read_as_before(read))
        };
        let changed: Vec<NodeId> = run.order().iter().copied().filter(changes).collect();
        for id in changed {
            *self.graph.node_mut(id) = run.node(id).clone();
        }
    }

    /// Is there nothing to choose?
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// The numbers that nodes have in the graph with these forms (by site; 0 is the node as it is), by their
    /// numbers here, and what is replaced by what in it. A node that is not there keeps its number.
    pub(super) fn chosen(
        &self,
        forms: &[FormNumber],
    ) -> (Vec<NodeId>, Vec<(NodeId, &'static Variant)>) {
        let mut numbers: Vec<NodeId> = self.graph.node_ids().collect();
        let mut variants = Vec::new();
        let mut next = self.graph.node_ids().skip(self.nodes);
        for (site, &form) in self.sites.iter().zip(forms) {
            let Some(form) = usize::from(form).checked_sub(1) else {
                continue;
            };
            let form = &site.forms[form];
            variants.push((site.node, form.variant));
            for (at, part) in form.parts.iter().enumerate() {
                numbers[part.index()] = match at == form.heir {
                    true => site.node,
                    // There are no more parts than nodes behind the original's.
                    false => next.next().unwrap_or(*part),
                };
            }
        }
        (numbers, variants)
    }

    /// All nodes in an order that is topological whatever is chosen; `base` is one of the original's orders that this was
    /// made for.
    pub(super) fn order(&self, base: &[NodeId]) -> Vec<NodeId> {
        let mut place = vec![usize::MAX; self.graph.node_count()];
        for (at, id) in base.iter().enumerate() {
            place[id.index()] = at;
        }
        let uses = Readings::of(self, base, &place);
        let mut keys: Vec<(usize, Rank, usize)> = vec![(0, Rank::Here, 0); self.graph.node_count()];
        let mut all = base.to_vec();
        for id in base {
            keys[id.index()] = (place[id.index()], Rank::Here, 0);
        }
        for site in &self.sites {
            let at = place[site.node.index()];
            for form in &site.forms {
                let turned = self.is_independent(&form.parts);
                for (number, &part) in form.parts.iter().enumerate() {
                    if place[part.index()] != usize::MAX {
                        continue;
                    }
                    place[part.index()] = at;
                    let number = if turned {
                        form.parts.len() - number
                    } else {
                        number
                    };
                    let (at, rank) = uses.place_of(&self.graph, part, at);
                    keys[part.index()] = (at, rank, number);
                    all.push(part);
                }
            }
        }
        all.sort_by_key(|id| (keys[id.index()], *id));
        all
    }

    /// Does no part read what another writes? Then the last one runs first: of a gradient of a
    /// convolution the half for the weights, after which the input of the convolution may go.
    fn is_independent(&self, parts: &[NodeId]) -> bool {
        parts.iter().all(|&part| {
            let mut read = self.graph.node(part).reads();
            read.all(|tensor| {
                let mut others = parts.iter().flat_map(|&id| self.graph.node(id).writes());
                others.all(|written| written != tensor)
            })
        })
    }
}

/// Where the tensors of the original order are born and read.
struct Readings {
    /// By tensor: the place of its producer.
    born: Vec<Option<usize>>,
    /// By tensor: the place of its first reader.
    read: Vec<Option<usize>>,
    /// By tensor: is it written by a part that runs only where it is read first?
    late: Vec<bool>,
}

impl Readings {
    fn of(all_forms: &AllForms, base: &[NodeId], place: &[usize]) -> Readings {
        let graph = &all_forms.graph;
        let mut born = vec![None; graph.tensor_count()];
        let mut read: Vec<Option<usize>> = vec![None; graph.tensor_count()];
        for &id in base {
            let at = place[id.index()];
            for tensor in graph.node(id).writes() {
                born[tensor.index()] = Some(at);
            }
            for tensor in graph.node(id).reads() {
                read[tensor.index()].get_or_insert(at);
            }
        }
        // What a part writes is there at its site, and a constant from the beginning.
        for site in &all_forms.sites {
            for &part in site.forms.iter().flat_map(|form| &form.parts) {
                let constant = graph.node(part).reads().next().is_none();
                let at = if constant {
                    0
                } else {
                    place[site.node.index()]
                };
                for tensor in graph.node(part).writes() {
                    born[tensor.index()].get_or_insert(at);
                }
            }
        }
        let late = vec![false; graph.tensor_count()];
        let mut found = Readings { born, read, late };
        for site in &all_forms.sites {
            let at = place[site.node.index()];
            for &part in site.forms.iter().flat_map(|form| &form.parts) {
                let is_constant = graph.node(part).reads().next().is_none();
                if !is_constant && found.place_of(graph, part, at).1 == Rank::Late {
                    for tensor in graph.node(part).writes() {
                        found.late[tensor.index()] = true;
                    }
                }
            }
        }
        found
    }

    /// A part that makes something smaller runs as soon as it can, one that makes it larger as
    /// late as it can; others where the replaced node ran.
    fn place_of(&self, graph: &Graph, part: NodeId, at: usize) -> (usize, Rank) {
        let node = graph.node(part);
        let size = |tensor| graph.tensor(tensor).bytes().map_or(0, |bytes| bytes.0);
        let read = node.reads().map(size).max().unwrap_or(0);
        let written = node.writes().map(size).max().unwrap_or(0);
        if read == 0 && node.reads().next().is_none() {
            return (0, Rank::Late);
        }
        let single = node.writes().count() == 1 && node.reads().count() <= 2 && read > 0;
        let is_late = node.reads().any(|tensor| self.late[tensor.index()]);
        if single && written < read && node.domain.is_empty() && !is_late {
            let born = node.reads().filter_map(|tensor| self.born[tensor.index()]);
            return match born.max() {
                Some(born) if born < at => (born, Rank::Early),
                _ => (at, Rank::Instead),
            };
        }
        let readers = node.writes().filter_map(|tensor| self.read[tensor.index()]);
        match readers.filter(|&reader| reader > at).min() {
            Some(reader) if single && written > read => (reader, Rank::Late),
            _ => (at, Rank::Instead),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::variants::VARIANTS;
    use crate::rewrite::infer_shapes::InferShapes;

    /// Made where the gradient stands, a mask would keep what it is made of until then.
    #[test]
    fn what_makes_something_smaller_stands_where_that_is_made_though_it_reads_a_constant() {
        let mut graph = Graph::parse(
            r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
            g (float[64,64] x) => (float[64,64] dx)
            {
                u = Tanh (x)
                y = Relu (u)
                v = Exp (y)
                w = Neg (v)
                [grad] dx = com.microsoft.ReluGrad (w, y)
            }"#,
        )
        .unwrap();
        let shapes = InferShapes::default();
        crate::pass::Pass::run(&shapes, &mut graph).unwrap();
        let order = graph.order().to_vec();
        let variant = VARIANTS.iter().find(|v| v.name == "relu-bool-mask");
        let offers = [(order[4], variant.expect("the variant"))];
        let all_forms = AllForms::of(&graph, &offers, std::slice::from_ref(&order));
        let listed = all_forms.order(&order).into_iter();
        let listed: Vec<&str> = listed
            .map(|id| all_forms.graph.node(id).op_type.as_str())
            .collect();
        assert_eq!(
            listed,
            [
                "Constant", "Tanh", "Relu", "Greater", "Exp", "Neg", "ReluGrad", "Cast", "ReluGrad"
            ]
        );
    }
}
