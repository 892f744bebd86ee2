//! The result as one page for a browser, which needs nothing else.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use ckpt_passes::analysis::mirrors::{is_mirror, mirrored};
use ckpt_passes::bytes::Bytes;
use ckpt_passes::optimize::{HeldBuffer, Peak};
use serde::Serialize;

use super::layers::layers;
use super::plot::Area;
use super::rows::Comparison;
use super::{Outcome, course, inspection, table};
use crate::text::printable;

const TEMPLATE: &str = include_str!("page.html");

/// Nobody can point at more moments than these.
const MOMENTS: usize = 2000;

/// The largest are told of one by one.
const BUFFERS: usize = 5000;

/// Of each table so many lines.
const LINES: usize = 200;

/// What the page's script reads.
#[derive(Serialize)]
struct Data<'a> {
    area: Place,
    /// Of the longer of both steps, in nanoseconds.
    duration: u64,
    before: Course<'a>,
    after: Course<'a>,
}

/// Where in the picture the curves lie.
#[derive(Serialize)]
struct Place {
    width: u32,
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
}

/// One step, at the moments at which most is there in each part of the time.
#[derive(Serialize)]
struct Course<'a> {
    total: usize,
    times: Vec<u64>,
    steps: Vec<usize>,
    needs: Vec<u64>,
    nodes: Vec<&'a str>,
    /// Name, bytes, first and last step, kind.
    buffers: Vec<(&'a str, u64, usize, usize, &'static str)>,
}

/// A copy: its node, what it is of, and what it lets go in between.
struct Copy<'a> {
    node: &'a str,
    of: &'a str,
    step: usize,
    time: u64,
    bytes: Bytes,
    /// The last step at which the original's largest buffer is there; none where its results lie in others' buffers.
    released: Option<usize>,
}

/// The page; with what other budgets cost, where that was worked out.
pub(super) fn html(outcome: &Outcome<'_>, trade_off: Option<&Comparison>) -> String {
    let summary = outcome.rewritten.summary();
    let picture = course::picture(summary);
    let duration = |peak: &Peak| peak.steps.iter().map(|&(time, _)| time).sum::<u64>();
    let data = Data {
        area: Place::of(&picture.area),
        duration: duration(&summary.before).max(duration(&summary.after)),
        before: Course::of(&summary.before),
        after: Course::of(&summary.after),
    };
    // The only place where text is not escaped as HTML.
    let data = serde_json::to_string(&data)
        .unwrap_or_default()
        .replace("</", "<\\/");
    let model = outcome.rewritten.file_name();
    let name = Path::new(&model).file_name();
    let model = name.map_or_else(|| model.clone(), |name| name.to_string_lossy().into_owned());
    let sum = format!(
        "{} → {} for {:+.2} % time",
        summary.before.bytes,
        summary.after.bytes,
        100.0 * summary.overhead()
    );
    let facts = table::facts(outcome);
    let facts = facts
        .iter()
        .map(|(name, value)| vec![Cell::text(name), Cell::text(value)]);
    let settings = outcome.rewritten.session().json();
    let settings: serde_json::Value = serde_json::from_str(&settings).unwrap_or_default();
    let tradeoff = match trade_off {
        Some(comparison) => comparison.plot(),
        None => {
            "<p class=\"soft\">Not worked out: <code>ckpt-opt sweep</code> does.</p>".to_owned()
        }
    };
    let parts = [
        ("title", escaped(&model)),
        ("sum", escaped(&sum)),
        ("facts", rows(&[], facts)),
        ("memory", picture.svg),
        ("layers", by_layer([&summary.before, &summary.after])),
        ("copies", copies(outcome)),
        ("replaced", replaced(outcome)),
        ("tradeoff", tradeoff),
        (
            "settings",
            escaped(&serde_json::to_string_pretty(&settings).unwrap_or_default()),
        ),
        ("data", data),
    ];
    filled(TEMPLATE, &BTreeMap::from(parts))
}

/// The template with what stands for each `{{name}}`. What is put in is not looked at again.
fn filled(template: &str, parts: &BTreeMap<&str, String>) -> String {
    let mut text = String::new();
    let mut pieces = template.split("{{");
    text.push_str(pieces.next().unwrap_or(""));
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or((piece, ""));
        text.push_str(parts.get(name).map_or("", String::as_str));
        text.push_str(rest);
    }
    text
}

impl Place {
    fn of(area: &Area) -> Place {
        Place {
            width: area.width,
            left: area.x.start,
            right: area.x.end,
            top: area.y.start,
            bottom: area.y.end,
        }
    }
}

impl<'a> Course<'a> {
    fn of(peak: &'a Peak) -> Course<'a> {
        let total: u64 = peak.steps.iter().map(|&(time, _)| time).sum();
        let part = |time: u64| u128::from(time) * MOMENTS as u128 / u128::from(total.max(1));
        // When each step begins, and of each part of the time the step that needs most.
        let mut moments: Vec<(usize, u64)> = Vec::new();
        let mut begin = 0;
        for (step, &(time, need)) in peak.steps.iter().enumerate() {
            match moments.last_mut() {
                Some(last) if part(last.1) == part(begin) => {
                    if peak.steps[last.0].1 < need {
                        *last = (step, begin);
                    }
                }
                _ => moments.push((step, begin)),
            }
            begin += time;
        }
        let mut buffers: Vec<&HeldBuffer> = peak.buffers.iter().collect();
        buffers.sort_by_key(|buffer| (std::cmp::Reverse(buffer.size), buffer.first));
        let buffers = buffers.into_iter().take(BUFFERS).map(|buffer| {
            let HeldBuffer {
                tensor,
                size,
                first,
                last,
                kind,
                ..
            } = buffer;
            (tensor.as_str(), size.0, *first, *last, kind.plural())
        });
        Course {
            total: peak.steps.len(),
            times: moments.iter().map(|&(_, begin)| begin).collect(),
            steps: moments.iter().map(|&(step, _)| step).collect(),
            needs: moments
                .iter()
                .map(|&(step, _)| peak.steps[step].1.0)
                .collect(),
            nodes: moments
                .iter()
                .map(|&(step, _)| peak.nodes[step].as_str())
                .collect(),
            buffers: buffers.collect(),
        }
    }
}

/// What each layer holds at both peaks.
fn by_layer(peaks: [&Peak; 2]) -> String {
    let [before, after] = peaks.map(|peak| peak.at(peak.step).buffers);
    let all: Vec<&HeldBuffer> = before.iter().chain(&after).copied().collect();
    let mut held: Vec<(String, [Bytes; 2])> = Vec::new();
    for layer in layers(all.iter().map(|buffer| (buffer.node.as_str(), buffer.size))) {
        let mut sums = [Bytes::ZERO; 2];
        for place in layer.members {
            sums[usize::from(place >= before.len())] += all[place].size;
        }
        held.push((layer.name, sums));
    }
    let [before, after] = peaks.map(inspection::kinds);
    let size = |kinds: &[(&str, Bytes)], wanted: &str| {
        let found = kinds.iter().find(|(kind, _)| *kind == wanted);
        found.map_or(Bytes::ZERO, |&(_, size)| size)
    };
    for kind in [inspection::WORKSPACE, inspection::GAPS] {
        held.push((kind.to_owned(), [size(&before, kind), size(&after, kind)]));
    }
    let [before, after] = peaks.map(|peak| peak.at(peak.step).total());
    let telling = Bytes(before.max(after).0 / inspection::TELLING);
    held.retain(|(_, [before, after])| *before.max(after) > telling);
    held.sort_by_key(|(name, [before, after])| {
        (std::cmp::Reverse(*before.max(after)), name.clone())
    });
    let lines = held.iter().take(LINES).map(|(name, [before, after])| {
        vec![
            Cell::text(name),
            Cell::number(before.to_string()),
            Cell::number(after.to_string()),
        ]
    });
    rows(&["layer", "before", "after"], lines)
}

fn copies(outcome: &Outcome<'_>) -> String {
    let mut copies = found_copies(outcome);
    let all = copies.len();
    copies.sort_by_key(|copy| (std::cmp::Reverse(copy.bytes), copy.step));
    let lines = copies.iter().take(LINES).map(|copy| {
        let why = match copy.released {
            Some(last) if last < copy.step => format!(
                "{} lets its result go after step {last}; it is there again from step {}",
                copy.of, copy.step
            ),
            _ => format!(
                "what {} wrote is there again from step {}",
                copy.of, copy.step
            ),
        };
        let results = match copy.bytes {
            Bytes::ZERO => "in place".to_owned(),
            bytes => bytes.to_string(),
        };
        vec![
            Cell::text(copy.node),
            Cell::number(table::duration(copy.time)),
            Cell::number(results),
            Cell::text(&why),
        ]
    });
    match all {
        0 => none(),
        _ => rows(&["node", "time", "results", "why"], lines) + &more(all),
    }
}

fn found_copies<'a>(outcome: &Outcome<'a>) -> Vec<Copy<'a>> {
    let after = &outcome.rewritten.summary().after;
    let graph = outcome.rewritten.graph();
    // By node: all that it wrote, and its largest buffer.
    let mut held: BTreeMap<&str, (Bytes, &HeldBuffer)> = BTreeMap::new();
    for buffer in &after.buffers {
        let entry = held
            .entry(buffer.node.as_str())
            .or_insert((Bytes::ZERO, buffer));
        entry.0 += buffer.size;
        if buffer.size > entry.1.size {
            entry.1 = buffer;
        }
    }
    let mut steps: BTreeMap<&str, usize> = BTreeMap::new();
    for (step, node) in after.nodes.iter().enumerate() {
        steps.entry(node).or_insert(step);
    }
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let copies = nodes.filter(|node| is_mirror(node)).filter_map(|node| {
        let of = mirrored(node)?;
        let &step = steps.get(node.name.as_str())?;
        Some(Copy {
            node: &node.name,
            of,
            step,
            time: after.steps[step].0,
            bytes: held
                .get(node.name.as_str())
                .map_or(Bytes::ZERO, |found| found.0),
            released: held.get(of).map(|found| found.1.last),
        })
    });
    copies.collect()
}

fn replaced(outcome: &Outcome<'_>) -> String {
    let variants = &outcome.rewritten.summary().variants;
    let lines = variants.iter().take(LINES);
    let lines = lines.map(|(node, variant)| vec![Cell::text(node), Cell::text(variant)]);
    match variants.len() {
        0 => none(),
        all => rows(&["node", "form"], lines) + &more(all),
    }
}

fn none() -> String {
    "<tr><td class=\"soft\">nothing</td></tr>".to_owned()
}

fn more(all: usize) -> String {
    match all.saturating_sub(LINES) {
        0 => String::new(),
        more => format!(
            "<tr><td class=\"soft\">and {more} more; the JSON of --report names them</td></tr>"
        ),
    }
}

/// A cell of a table.
struct Cell {
    text: String,
    is_number: bool,
}

impl Cell {
    fn text(text: &str) -> Cell {
        Cell {
            text: escaped(text),
            is_number: false,
        }
    }

    fn number(text: String) -> Cell {
        Cell {
            text: escaped(&text),
            is_number: true,
        }
    }
}

/// Lines under a heading, if there is one; a column of numbers has its heading at the right as well.
fn rows(heading: &[&str], lines: impl Iterator<Item = Vec<Cell>>) -> String {
    let mut lines = lines.peekable();
    let class = |cell: Option<&Cell>| match cell {
        Some(cell) if cell.is_number => " class=\"n\"",
        _ => "",
    };
    let mut text = String::new();
    for (column, name) in heading.iter().enumerate() {
        let class = class(lines.peek().and_then(|line| line.get(column)));
        let _ = write!(text, "<th{class}>{name}</th>");
    }
    if !text.is_empty() {
        text = format!("<tr>{text}</tr>");
    }
    for line in lines {
        text.push_str("<tr>");
        for cell in line {
            let _ = write!(text, "<td{}>{}</td>", class(Some(&cell)), cell.text);
        }
        text.push_str("</tr>");
    }
    text
}

/// As text in HTML.
fn escaped(text: &str) -> String {
    let text = printable(text);
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_into_the_page_is_not_looked_at_again() {
        let parts = BTreeMap::from([("a", "{{b}}".to_owned()), ("b", "x".to_owned())]);
        assert_eq!(filled("<{{a}}|{{b}}|{{c}}>", &parts), "<{{b}}|x|>");
    }

    #[test]
    fn names_are_text() {
        assert_eq!(
            escaped("<script>&\"\u{1b}["),
            "&lt;script&gt;&amp;&quot;\u{fffd}[".replace('\u{fffd}', &printable("\u{1b}"))
        );
    }

    #[test]
    fn of_many_steps_those_that_need_most_are_moments() {
        let need = |i: u64| if i == 77_777 { Bytes(9) } else { Bytes(1) };
        let steps: Vec<(u64, Bytes)> = (0..100_000).map(|i| (1, need(i))).collect();
        let peak = Peak {
            nodes: vec![String::new(); steps.len()],
            steps,
            ..Peak::nothing(Bytes::ZERO)
        };
        let course = Course::of(&peak);
        assert!(course.times.len() <= MOMENTS);
        assert!(course.needs.contains(&9) && course.steps.contains(&77_777));
        assert!(course.times.is_sorted());
    }
}
