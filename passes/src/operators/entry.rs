//! What a table entry holds, and what it holds unless it says otherwise.

use super::view::{Fault, Outputs, View};
use super::{Alias, Family, Provider, Recompute};
use crate::bytes::Bytes;
use crate::graph::{ElementType, Node};

pub(crate) const MICROSOFT: &str = "com.microsoft";
pub(super) const ATEN: &str = "org.pytorch.aten";

pub(super) type ShapeRule = fn(&View) -> Result<Outputs, Fault>;
pub(super) type OperationsRule = fn(&View) -> Option<f64>;
pub(super) type TrafficRule = fn(&View, Provider) -> Option<f64>;
pub(super) type WorkspaceRule = fn(&View, Provider) -> Option<Bytes>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Aliases {
    These(&'static [Alias]),
    /// Output `i` is input `i`.
    EachToEach,
}

/// The facts about one operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operator {
    pub(super) domain: &'static str,
    pub(super) name: &'static str,
    pub(super) family: Family,
    pub(super) shape: ShapeRule,
    pub(super) operations: OperationsRule,
    pub(super) traffic: TrafficRule,
    pub(super) workspace: WorkspaceRule,
    pub(super) aliases: Aliases,
    pub(super) in_place_cpu: &'static [Alias],
    pub(super) in_place_cuda: &'static [Alias],
    /// Results of this type have memory of their own on the CPU.
    pub(super) apart_cpu: Option<ElementType>,
    pub(super) recompute: fn(&Node) -> Recompute,
}

/// An operator of the standard: pure, reading and writing everything once, one operation per
/// element of the output, unless said otherwise.
pub(super) const fn onnx(name: &'static str, family: Family, shape: ShapeRule) -> Operator {
    Operator {
        domain: "",
        name,
        family,
        shape,
        operations: |view| per_output_element(view, 1.0),
        traffic: |view, _| everything(view),
        workspace: |_, _| None,
        aliases: Aliases::These(&[]),
        in_place_cpu: &[],
        in_place_cuda: &[],
        apart_cpu: None,
        recompute: |_| Recompute::Clone,
    }
}

/// An operator of ONNX Runtime's own domain, with the same defaults.
pub(super) const fn microsoft(name: &'static str, family: Family, shape: ShapeRule) -> Operator {
    Operator {
        domain: MICROSOFT,
        ..onnx(name, family, shape)
    }
}

impl Operator {
    /// Output 0 is input 0.
    pub(super) const fn alias(mut self) -> Operator {
        self.aliases = Aliases::These(&[(0, 0)]);
        self.traffic = |_, _| Some(0.0);
        self.operations = |_| None;
        self
    }

    pub(super) const fn aliasing(mut self, aliases: Aliases) -> Operator {
        self.aliases = aliases;
        self
    }

    /// Output 0 may take over input 0, on every provider.
    pub(super) const fn in_place(self) -> Operator {
        self.in_place_on_cpu().in_place_on_cuda()
    }

    /// Output 0 may take over input 0 on the CPU.
    pub(super) const fn in_place_on_cpu(mut self) -> Operator {
        self.in_place_cpu = &[(0, 0)];
        self
    }

    /// But not where it is of that type.
    pub(super) const fn but_not_of(mut self, element: ElementType) -> Operator {
        self.apart_cpu = Some(element);
        self
    }

    /// Output 0 may take over input 0 on CUDA (measured in 1.31.1, tools/gpu_in_place.py).
    pub(super) const fn in_place_on_cuda(mut self) -> Operator {
        self.in_place_cuda = &[(0, 0)];
        self
    }

    pub(super) const fn operations(mut self, rule: OperationsRule) -> Operator {
        self.operations = rule;
        self
    }

    pub(super) const fn traffic(mut self, rule: TrafficRule) -> Operator {
        self.traffic = rule;
        self
    }

    pub(super) const fn workspace(mut self, rule: WorkspaceRule) -> Operator {
        self.workspace = rule;
        self
    }

    pub(super) const fn recompute(mut self, rule: fn(&Node) -> Recompute) -> Operator {
        self.recompute = rule;
        self
    }
}

/// Every input and every output, once each.
pub(super) fn everything(view: &View) -> Option<f64> {
    let reads = view.node.reads();
    let bytes = reads
        .chain(view.node.writes())
        .map(|id| view.graph.tensor(id).bytes());
    Some(bytes.map(|b| b.map_or(0.0, |b| b.0 as f64)).sum())
}

/// The outputs, read and written once: operators that read only a part of their input.
pub(super) fn output_twice(view: &View, _: Provider) -> Option<f64> {
    let bytes = view.node.writes().map(|id| view.graph.tensor(id).bytes());
    Some(bytes.map(|b| b.map_or(0.0, |b| 2.0 * b.0 as f64)).sum())
}

pub(super) fn per_output_element(view: &View, operations: f64) -> Option<f64> {
    Some(view.output(0)?.count() as f64 * operations)
}

pub(super) fn per_input_element(view: &View, operations: f64) -> Option<f64> {
    Some(view.input(0).ok()?.count() as f64 * operations)
}

/// The rule of operators whose first output is like their first input.
pub(super) fn like_first(view: &View) -> Result<Outputs, Fault> {
    Ok(vec![view.input(0)?.same()])
}
