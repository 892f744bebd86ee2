//! Cross-entropy and its gradient.

use super::operation::op;
use super::site::{LoweringSite, Obstacle, attribute, case, cast};
use crate::graph::{ElementType, TensorId};

/// SoftmaxCrossEntropyLoss(scores, labels, weights) -> (loss, log probabilities): no build has a kernel for it, and its
/// pieces would be put where nobody plans them.
pub(super) fn cross_entropy(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let ignored = Ignored::by_attribute(site);
    let out = site.input(0).and_then(|scores| site.element(scores))?;
    cross_entropy_of(site, ignored, out)
}

/// The same with the label that does not count as an input.
pub(super) fn cross_entropy_internal(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let ignored = Ignored::by_input(site, 3);
    let of_scores = site.element(site.input(0)?)?;
    let out = output_type(site, of_scores);
    cross_entropy_of(site, ignored, out)
}

/// What the node says, or else `default`.
fn output_type(site: &LoweringSite, default: ElementType) -> ElementType {
    let declared = site.node.int("output_type").filter(|&number| number != 0);
    let declared = declared.and_then(|number| ElementType::from_onnx(i32::try_from(number).ok()?));
    declared.unwrap_or(default)
}

/// The label that does not count. There always is one: where nothing says which, the runtime takes −1.
enum Ignored {
    Number(i64),
    Input(TensorId),
}

impl Ignored {
    fn by_input(site: &LoweringSite, position: usize) -> Ignored {
        let label = site.node.input(position);
        label.map_or(Ignored::Number(-1), Ignored::Input)
    }

    fn by_attribute(site: &LoweringSite) -> Ignored {
        Ignored::Number(site.node.int("ignore_index").unwrap_or(-1))
    }

    /// As a number of the labels' type.
    fn label(self, site: &mut LoweringSite, of_labels: ElementType) -> Result<TensorId, Obstacle> {
        let (label, from) = match self {
            Ignored::Number(number) => (site.int(number), ElementType::Int64),
            Ignored::Input(label) => (label, site.element(label)?),
        };
        Ok(site.as_type(label, from, of_labels))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Reduction {
    None,
    Mean,
    Sum,
}

fn reduction(site: &LoweringSite) -> Result<Reduction, Obstacle> {
    match site.node.string("reduction") {
        None | Some("mean") => Ok(Reduction::Mean),
        Some("sum") => Ok(Reduction::Sum),
        Some("none") => Ok(Reduction::None),
        Some(_) => attribute("reduction", "none, mean or sum"),
    }
}

/// Where the labels are, and what each of them weighs.
struct Labels {
    /// As places on axis 1.
    places: TensorId,
    /// For each label what it weighs; 0 for one that does not count.
    weights: TensorId,
}

impl Labels {
    fn of(
        site: &mut LoweringSite,
        labels: TensorId,
        weights: Option<TensorId>,
        ignored: Ignored,
        element: ElementType,
    ) -> Result<Labels, Obstacle> {
        let of_labels = site.element(labels)?;
        let label = ignored.label(site, of_labels)?;
        let is_ignored = site.add(op("Equal", [labels, label]));
        let does_count = site.add(op("Not", [is_ignored]));
        // Such a label need not be a place; it must not be looked up.
        let zero = site.int(0);
        let zero = site.as_type(zero, ElementType::Int64, of_labels);
        let safe = site.add(op("Where", [does_count, labels, zero]));
        let mut each = site.add(cast(does_count, element));
        if let Some(weights) = weights {
            let weights = site.converted(weights, element)?;
            let of_label = site.add(op("Gather", [weights, safe]).int("axis", 0));
            each = site.add(op("Mul", [of_label, each]));
        }
        let one = site.ints(&[1]);
        let places = site.add(op("Unsqueeze", [safe, one]));
        Ok(Labels {
            places,
            weights: each,
        })
    }

    /// Σ of what all labels weigh, or 1 in place of 0: what would be divided is 0 then.
    fn total(&self, site: &mut LoweringSite, element: ElementType) -> TensorId {
        let total = sum_of_all(site, self.weights);
        let zero = site.number(0.0, element);
        let is_zero = site.add(op("Equal", [total, zero]));
        let is_zero = site.add(cast(is_zero, element));
        site.add(op("Add", [total, is_zero]))
    }
}

fn sum_of_all(site: &mut LoweringSite, data: TensorId) -> TensorId {
    site.add(op("ReduceSum", [data]).int("keepdims", 0))
}

fn cross_entropy_of(
    site: &mut LoweringSite,
    ignored: Ignored,
    out: ElementType,
) -> Result<(), Obstacle> {
    let [scores, labels] = site.inputs()?;
    let element = site.element(scores)?;
    let reduction = reduction(site)?;
    let (loss, log_output) = (site.output(0), site.output(1));
    let logarithm = op("LogSoftmax", [scores]).int("axis", 1);
    let logarithms = if out == element {
        site.put_or_add(logarithm, log_output)
    } else {
        let narrow = site.add(logarithm);
        site.put_or_add(cast(narrow, out), log_output)
    };
    let Some(loss) = loss else {
        return Ok(());
    };
    let weights = site.node.input(2);
    let rows = Labels::of(site, labels, weights, ignored, out)?;
    let one = site.ints(&[1]);
    let chosen = site.add(op("GatherElements", [logarithms, rows.places]).int("axis", 1));
    let chosen = site.add(op("Squeeze", [chosen, one]));
    let losses = site.add(op("Neg", [chosen]));
    let losses = op("Mul", [losses, rows.weights]);
    match reduction {
        Reduction::None => site.put(losses, loss),
        Reduction::Sum => {
            let losses = site.add(losses);
            site.put(op("ReduceSum", [losses]).int("keepdims", 0), loss);
        }
        Reduction::Mean => {
            let losses = site.add(losses);
            let sum = sum_of_all(site, losses);
            let total = rows.total(site, out);
            site.put(op("Div", [sum, total]), loss);
        }
    }
    Ok(())
}

/// SoftmaxCrossEntropyLossGrad(dloss, log probabilities, labels, weights): with p = exp(log probabilities), dX = f · (p − 1)
/// at the label and f · p elsewhere; f is dloss times what the label weighs, for a mean divided by what all weigh.
pub(super) fn cross_entropy_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let ignored = Ignored::by_attribute(site);
    let weights = site.node.input(3);
    cross_entropy_grad_of(site, weights, ignored, None)
}

/// The same with the label that does not count as an input, and something to be added to the result.
pub(super) fn cross_entropy_internal_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let ignored = Ignored::by_input(site, 4);
    let (weights, bias) = (site.node.input(3), site.node.input(5));
    cross_entropy_grad_of(site, weights, ignored, bias)
}

fn cross_entropy_grad_of(
    site: &mut LoweringSite,
    weights: Option<TensorId>,
    ignored: Ignored,
    bias: Option<TensorId>,
) -> Result<(), Obstacle> {
    let [dloss, logarithms, labels] = site.inputs()?;
    let dx = site.result()?;
    let element = site.element(logarithms)?;
    let of_dloss = site.element(dloss)?;
    let out = output_type(site, of_dloss);
    let reduction = reduction(site)?;
    let rows = Labels::of(site, labels, weights, ignored, element)?;
    let dloss = site.as_type(dloss, of_dloss, element);
    let mut factor = dloss;
    if reduction == Reduction::Mean {
        let total = rows.total(site, element);
        factor = site.add(op("Div", [factor, total]));
    }
    let one = site.ints(&[1]);
    let factor = site.add(op("Mul", [rows.weights, factor]));
    let factor = site.add(op("Unsqueeze", [factor, one]));
    let chosen = site.add(op("GatherElements", [logarithms, rows.places]).int("axis", 1));
    let chosen = site.add(op("Exp", [chosen]));
    let number = site.number(1.0, element);
    let chosen = site.add(op("Sub", [chosen, number]));
    let chosen = site.add(op("Mul", [chosen, factor]));
    // One after another, so that all of them can have the same memory.
    let p = site.add(op("Exp", [logarithms]));
    let scaled = site.add(op("Mul", [p, factor]));
    let mut last = op("ScatterElements", [scaled, rows.places, chosen]).int("axis", 1);
    if out != element {
        let narrow = site.add(last);
        last = cast(narrow, out);
    }
    if let Some(bias) = bias {
        let sum = site.add(last);
        last = op("Add", [sum, bias]);
    }
    site.put(last, dx);
    Ok(())
}

/// SoftmaxCrossEntropy(scores, distribution) -> (loss, log probabilities), over the last dimension.
pub(super) fn dense_cross_entropy(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [scores, labels] = site.inputs()?;
    let reduction = reduction(site)?;
    let rank = site.rank(scores)?;
    if site.opset() < 13 {
        return case("in operator sets before 13");
    }
    let log_output = site.output(1);
    let logarithms = site.put_or_add(op("LogSoftmax", [scores]).int("axis", -1), log_output);
    let Some(loss) = site.output(0) else {
        return Ok(());
    };
    let product = site.add(op("Mul", [logarithms, labels]));
    let sum = sum_of_all(site, product);
    let element = site.element(scores)?;
    let negative = op("Neg", [sum]);
    match reduction {
        Reduction::Sum => site.put(negative, loss),
        Reduction::Mean => {
            let rows: Vec<usize> = (0..rank.saturating_sub(1)).collect();
            let count = site.count_of(scores, &rows, element);
            let negative = site.add(negative);
            site.put(op("Div", [negative, count]), loss);
        }
        Reduction::None => return case("with the reduction none"),
    }
    Ok(())
}

/// dX = (exp(log probabilities) − distribution) · dloss, for a mean divided by the number of rows.
pub(super) fn dense_cross_entropy_grad(site: &mut LoweringSite) -> Result<(), Obstacle> {
    let [dloss, logarithms, labels] = site.inputs()?;
    let dx = site.result()?;
    let element = site.element(logarithms)?;
    let mut factor = dloss;
    match reduction(site)? {
        Reduction::Sum => {}
        Reduction::Mean => {
            let rank = site.rank(logarithms)?;
            let rows: Vec<usize> = (0..rank.saturating_sub(1)).collect();
            let count = site.count_of(logarithms, &rows, element);
            factor = site.add(op("Div", [dloss, count]));
        }
        Reduction::None => return case("with the reduction none"),
    }
    let p = site.add(op("Exp", [logarithms]));
    let difference = site.add(op("Sub", [p, labels]));
    site.put(op("Mul", [difference, factor]), dx);
    Ok(())
}
