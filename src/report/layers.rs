//! Buffers by layer: exporters name nodes by the module that they come from, with slashes or dots between.

use std::collections::BTreeMap;

use ckpt_passes::bytes::Bytes;

/// With so many groups none is taken apart further.
const ENOUGH: usize = 12;

/// Nodes whose names begin alike, and what they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// The beginning of the names, with a `*` where there is more.
    pub(super) name: String,
    /// What they hold together.
    pub(super) bytes: Bytes,
    /// Which they are: places in what was given.
    pub(super) members: Vec<usize>,
}

/// A node's name in parts, what it holds, and its place in what was given.
type Holding = (Vec<String>, Bytes, usize);

/// Nodes that share the first `depth` parts of their names.
struct Group {
    depth: usize,
    holdings: Vec<Holding>,
    /// Nobody can tell its nodes apart.
    whole: bool,
}

/// What nodes hold, by layer, the largest first. The groups that hold most are taken apart until there are enough.
pub(super) fn layers<'a>(held: impl Iterator<Item = (&'a str, Bytes)>) -> Vec<Layer> {
    let holdings = held
        .enumerate()
        .map(|(place, (name, bytes))| (parts(name), bytes, place));
    let holdings = holdings.collect();
    let mut groups = vec![Group {
        depth: 0,
        holdings,
        whole: false,
    }];
    while let Some(largest) = largest(&groups).filter(|_| groups.len() < ENOUGH) {
        let apart = groups[largest].apart();
        if apart.is_empty() {
            groups[largest].whole = true;
        } else {
            groups.swap_remove(largest);
            groups.extend(apart);
        }
    }
    let layers = groups.into_iter().map(|group| group.narrowed().layer());
    let mut layers: Vec<Layer> = layers.collect();
    layers.retain(|layer| !layer.members.is_empty());
    layers.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    layers
}

/// The group to take apart next.
fn largest(groups: &[Group]) -> Option<usize> {
    let open = groups.iter().enumerate().filter(|(_, group)| !group.whole);
    let by_size = open.map(|(place, group)| (group.bytes(), std::cmp::Reverse(place)));
    by_size.max().map(|(_, place)| place.0)
}

impl Group {
    /// By the next part; nothing where there is none.
    fn apart(&self) -> Vec<Group> {
        let mut by_part: BTreeMap<Option<String>, Vec<Holding>> = BTreeMap::new();
        for holding in &self.holdings {
            let part = holding.0.get(self.depth).cloned();
            by_part.entry(part).or_default().push(holding.clone());
        }
        if by_part.keys().all(Option::is_none) {
            return Vec::new();
        }
        let group = |(part, holdings): (Option<String>, Vec<Holding>)| Group {
            depth: self.depth + usize::from(part.is_some()),
            holdings,
            whole: part.is_none(),
        };
        by_part.into_iter().map(group).collect()
    }

    /// With all parts that its nodes share.
    fn narrowed(mut self) -> Group {
        while let [_] = self.apart()[..] {
            self.depth += 1;
            if self
                .holdings
                .iter()
                .all(|(parts, _, _)| parts.len() <= self.depth)
            {
                break;
            }
        }
        self
    }

    fn bytes(&self) -> Bytes {
        self.holdings.iter().map(|&(_, bytes, _)| bytes).sum()
    }

    fn layer(&self) -> Layer {
        let first = self.holdings.first();
        let begin = first.map_or(&[][..], |(parts, _, _)| {
            &parts[..self.depth.min(parts.len())]
        });
        let more = self
            .holdings
            .iter()
            .any(|(parts, _, _)| parts.len() > self.depth);
        // A number says which of the family before it is meant.
        let is_number = |of: &str, next: &String| next.starts_with(of.trim_end_matches(FAMILY));
        let told = begin
            .iter()
            .zip(begin.iter().map(Some).skip(1).chain([None]));
        let told = told.filter(|(part, next)| {
            !(part.ends_with(FAMILY) && next.is_some_and(|next| is_number(part, next)))
        });
        let told: Vec<&str> = told.map(|(part, _)| part.as_str()).collect();
        let name = match (told.last(), more) {
            (None, _) => "*".to_owned(),
            (Some(last), true) if !last.ends_with(FAMILY) => format!("{}/*", told.join("/")),
            _ => told.join("/"),
        };
        Layer {
            name,
            bytes: self.bytes(),
            members: self.holdings.iter().map(|&(_, _, place)| place).collect(),
        }
    }
}

/// What stands for the numbers of modules that are called alike.
const FAMILY: &str = "_*";

/// The parts of a node's name, without the last, which is the operator's. Gradients belong to the module that they are of,
/// and modules that differ by a number behind an underscore to a family.
fn parts(name: &str) -> Vec<String> {
    let prefixes = ["AccumulateGrad_", "ckpt-opt/variant/"];
    let prefix = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
    let name = prefix.unwrap_or(name);
    let between = if name.contains('/') { '/' } else { '.' };
    let mut parts: Vec<&str> = name
        .split(between)
        .filter(|part| !part.is_empty())
        .collect();
    if parts.len() > 1 {
        parts.pop();
    }
    let mut found = Vec::with_capacity(parts.len());
    for part in parts {
        let part = part.strip_suffix("_Grad").unwrap_or(part);
        let number = part.rsplit_once('_').filter(|(begin, number)| {
            !begin.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        });
        let family = number.map_or(part, |(begin, _)| begin);
        found.push(format!("{family}{FAMILY}"));
        found.push(part.to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(held: &[(&str, u64)]) -> Vec<String> {
        let held = held.iter().map(|&(name, bytes)| (name, Bytes(bytes)));
        let layers = layers(held).into_iter();
        layers
            .map(|layer| format!("{} {} {}", layer.name, layer.bytes.0, layer.members.len()))
            .collect()
    }

    #[test]
    fn buffers_are_grouped_by_the_modules_of_their_nodes() {
        let held = [
            ("/layer1/conv1/Conv", 4),
            ("/layer1/conv2/Conv", 5),
            ("/layer1/conv2/Conv_Grad/ConvGrad_0", 6),
            ("/layer2/relu/Relu", 7),
            ("/layer2/relu/Relu_1", 1),
        ];
        assert_eq!(
            shown(&held),
            [
                "layer2/relu 8 2",
                "layer1/conv2/Conv 6 1",
                "layer1/conv2 5 1",
                "layer1/conv1 4 1"
            ]
        );
    }

    #[test]
    fn what_holds_most_is_taken_apart_until_there_are_enough_groups() {
        let names: Vec<String> = (0..40).map(|i| format!("/h/l.{i}/a/Add")).collect();
        let mut held: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        held.push(("/head/a/Gemm", 3));
        held.push(("/head/b/Gemm", 3));
        let shown = shown(&held);
        assert_eq!(shown.len(), 41);
        assert_eq!(shown[..2], ["head/* 6 2", "h/l.0/a 1 1"]);
    }

    #[test]
    fn modules_that_are_only_numbered_are_families() {
        let names: Vec<String> = ["da", "proj", "fc"]
            .iter()
            .flat_map(|name| (0..20).map(move |i| format!("/{name}_{i}/Add")))
            .collect();
        let held: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let shown = shown(&held);
        // The largest, or the first of equals, is taken apart.
        assert_eq!(shown[..2], ["fc_* 20 20", "proj_* 20 20"]);
        assert!(shown.contains(&"da_19 1 1".to_owned()), "{shown:?}");
    }

    #[test]
    fn names_without_parts_are_groups_of_their_own() {
        assert_eq!(shown(&[("a", 2), ("b", 1), ("a", 2)]), ["a 4 2", "b 1 1"]);
        assert_eq!(
            shown(&[("enc.0.fc", 2), ("enc.1.fc", 1)]),
            ["enc/0 2 1", "enc/1 1 1"]
        );
        assert!(shown(&[]).is_empty());
        assert_eq!(shown(&[("", 2)]), ["* 2 1"]);
    }
}
