//! One change to a file.

use ckpt_passes::testing::Draw;

use super::wire::{Msg, Value};

/// Is a mutant harmful by the way it was made?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    Always,
    /// Only if its meaning is another.
    ByMeaning,
}

const GRAPH: u32 = 7;
const NODE: u32 = 1;
const ATTRIBUTE: u32 = 5;

/// A random change to the model, in words; `None` where the model has nothing to change so.
pub(crate) fn mutated(bytes: &[u8], random: &mut impl Draw) -> Option<(String, Harm, Vec<u8>)> {
    let mut model = Msg::parse(bytes)?;
    let place = *model.places(GRAPH).first()?;
    let mut graph = model.at(place)?;
    let (how, harm) = match pick(random, 12) {
        0 => initializer(&mut graph, random)?,
        1 => values(&mut graph, random)?,
        2 => {
            let changed = of_model(&mut model, &graph, random)?;
            return Some((changed.0, changed.1, model.encode()));
        }
        3 => unknown(&mut graph, random)?,
        4 => nodes(&mut graph, random)?,
        _ => node(&mut graph, random)?,
    };
    model.put(place, &graph);
    Some((how, harm, model.encode()))
}

fn pick(random: &mut impl Draw, below: usize) -> usize {
    random.below(below.max(1))
}

fn one_of(places: &[usize], random: &mut impl Draw) -> Option<usize> {
    (!places.is_empty()).then(|| places[pick(random, places.len())])
}

/// A number, a byte of bytes, or a text is changed.
fn shake(value: &mut Value, random: &mut impl Draw) -> Option<()> {
    match value {
        Value::Varint(value) => *value = value.wrapping_add(1 + random.below(3) as u64),
        Value::Fixed32(bytes) => bytes[pick(random, 4)] ^= 1 << random.below(8),
        Value::Fixed64(bytes) => bytes[pick(random, 8)] ^= 1 << random.below(8),
        Value::Bytes(bytes) if bytes.is_empty() => bytes.push(b'x'),
        Value::Bytes(bytes) => {
            let at = pick(random, bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
    }
    Some(())
}

fn initializer(graph: &mut Msg, random: &mut impl Draw) -> Option<(String, Harm)> {
    let number = if random.below(4) == 0 && !graph.places(15).is_empty() {
        15
    } else {
        5
    };
    let at = one_of(&graph.places(number), random)?;
    let mut tensor = graph.at(at)?;
    let field = pick(random, tensor.0.len());
    let what = tensor.0.get(field)?.0;
    shake(&mut tensor.0[field].1, random)?;
    graph.put(at, &tensor);
    Some((
        format!("field {what} of initializer {:?}", tensor.text(8)),
        Harm::Always,
    ))
}

/// Inputs, outputs, value_info.
fn values(graph: &mut Msg, random: &mut impl Draw) -> Option<(String, Harm)> {
    match random.below(4) {
        0 => {
            let outputs = graph.places(12);
            let (a, b) = (one_of(&outputs, random)?, one_of(&outputs, random)?);
            (a != b).then_some(())?;
            graph.0.swap(a, b);
            Some((
                "two outputs of the graph are swapped".to_owned(),
                Harm::Always,
            ))
        }
        1 => {
            let inputs = graph.places(11);
            let (a, b) = (one_of(&inputs, random)?, one_of(&inputs, random)?);
            (a != b).then_some(())?;
            graph.0.swap(a, b);
            Some((
                "two inputs of the graph are swapped".to_owned(),
                Harm::Always,
            ))
        }
        number => {
            let number = if number == 2 {
                13
            } else {
                11 + random.below(2) as u32
            };
            let at = one_of(&graph.places(number), random)?;
            let mut info = graph.at(at)?;
            let place = *info.places(2).first()?;
            let mut kind = info.at(place)?;
            let tensor_place = *kind.places(1).first()?;
            let mut tensor = kind.at(tensor_place)?;
            let element = *tensor.places(1).first()?;
            tensor.0[element].1 = Value::Varint([2, 7, 11, 99][pick(random, 4)]);
            kind.put(tensor_place, &tensor);
            info.put(place, &kind);
            graph.put(at, &info);
            Some((
                format!("the declared type of {:?}", info.text(1)),
                Harm::Always,
            ))
        }
    }
}

fn of_model(model: &mut Msg, graph: &Msg, random: &mut impl Draw) -> Option<(String, Harm)> {
    match random.below(5) {
        0 => {
            let at = one_of(&model.places(8), random)?;
            let mut import = model.at(at)?;
            let version = *import.places(2).first()?;
            shake(&mut import.0[version].1, random)?;
            model.put(at, &import);
            Some(("the version of an operator set".to_owned(), Harm::Always))
        }
        1 => {
            let at = one_of(&model.places(1), random)?;
            shake(&mut model.0[at].1, random)?;
            Some(("ir_version".to_owned(), Harm::Always))
        }
        2 => {
            let at = one_of(&model.places(25), random)?;
            let mut function = model.at(at)?;
            let field = pick(random, function.0.len());
            shake(&mut function.0.get_mut(field)?.1, random)?;
            model.put(at, &function);
            Some(("a function".to_owned(), Harm::Always))
        }
        3 => {
            // A function that was not there, with the operator of some node.
            let nodes = graph.msgs(NODE);
            let node = nodes.get(pick(random, nodes.len()))?;
            let function = Msg(vec![
                (1, Value::Bytes(node.text(4).into_bytes())),
                (10, Value::Bytes(node.text(7).into_bytes())),
            ]);
            model.0.push((25, Value::Bytes(function.encode())));
            Some(("a new function".to_owned(), Harm::Always))
        }
        _ => {
            model.0.push((
                200 + random.below(900) as u32,
                Value::Varint(random.below(9) as u64),
            ));
            Some(("an unknown field of the model".to_owned(), Harm::Always))
        }
    }
}

fn unknown(graph: &mut Msg, random: &mut impl Draw) -> Option<(String, Harm)> {
    let number = [30, 63, 64, 500, 5001][pick(random, 5)];
    let field = (
        number,
        [Value::Varint(3), Value::Bytes(b"new".to_vec())][pick(random, 2)].clone(),
    );
    let (path, last): (&[u32], &str) = match random.below(8) {
        0 => (&[], "graph"),
        1 => (&[NODE], "a node"),
        2 => (&[NODE, ATTRIBUTE], "an attribute"),
        3 => (&[11], "an input"),
        4 => (&[12], "an output"),
        5 => (&[13], "a value_info"),
        6 => (&[13, 2], "a type"),
        _ => (&[5], "an initializer"),
    };
    added(graph, path, &field, random)?;
    Some((format!("field {number} of {last}"), Harm::Always))
}

fn added(
    message: &mut Msg,
    path: &[u32],
    field: &(u32, Value),
    random: &mut impl Draw,
) -> Option<()> {
    let Some((first, rest)) = path.split_first() else {
        message.0.push(field.clone());
        return Some(());
    };
    let at = one_of(&message.places(*first), random)?;
    let mut inner = message.at(at)?;
    added(&mut inner, rest, field, random)?;
    message.put(at, &inner);
    Some(())
}

fn nodes(graph: &mut Msg, random: &mut impl Draw) -> Option<(String, Harm)> {
    let places = graph.places(NODE);
    let at = one_of(&places, random)?;
    let mut node = graph.at(at)?;
    let name = node.text(3);
    match random.below(5) {
        0 => {
            graph.0.remove(at);
            Some((format!("{name:?} is gone"), Harm::ByMeaning))
        }
        1 => {
            let copy = graph.0[at].clone();
            graph.0.insert(at, copy);
            Some((format!("{name:?} is there twice"), Harm::Always))
        }
        2 => {
            // As a copy would be: names are new, readers are none.
            for place in node.places(2).into_iter().chain(node.places(3)) {
                if let Value::Bytes(text) = &mut node.0[place].1
                    && !text.is_empty()
                {
                    text.extend_from_slice(b"/mutant");
                }
            }
            graph.0.insert(at + 1, (NODE, Value::Bytes(node.encode())));
            Some((format!("{name:?} is computed again"), Harm::ByMeaning))
        }
        3 => {
            let other = graph.at(one_of(&places, random)?)?;
            let (theirs, ours) = (other.text(3), *node.places(3).first()?);
            (theirs != name && !theirs.is_empty()).then_some(())?;
            node.0[ours].1 = Value::Bytes(theirs.clone().into_bytes());
            graph.put(at, &node);
            Some((format!("{name:?} is called {theirs:?} too"), Harm::Always))
        }
        _ => {
            let other = one_of(&places, random)?;
            let mut second = graph.at(other)?;
            let (mine, theirs) = (
                one_of(&node.places(2), random)?,
                one_of(&second.places(2), random)?,
            );
            (at != other).then_some(())?;
            std::mem::swap(&mut node.0[mine].1, &mut second.0[theirs].1);
            graph.put(at, &node);
            graph.put(other, &second);
            Some((
                format!("results of {name:?} and {:?} are swapped", second.text(3)),
                Harm::ByMeaning,
            ))
        }
    }
}

fn node(graph: &mut Msg, random: &mut impl Draw) -> Option<(String, Harm)> {
    let at = one_of(&graph.places(NODE), random)?;
    let every: Vec<String> = {
        let written = graph.msgs(NODE).into_iter().flat_map(|node| node.texts(2));
        let given = graph.msgs(11).into_iter().map(|info| info.text(1));
        written
            .chain(given)
            .filter(|name| !name.is_empty())
            .collect()
    };
    let mut node = graph.at(at)?;
    let name = node.text(3);
    let inputs = node.places(1);
    let (what, harm) = match random.below(10) {
        0..=2 => {
            let input = one_of(&inputs, random)?;
            let other = &every[pick(random, every.len())];
            node.0[input].1 = Value::Bytes(other.clone().into_bytes());
            (format!("reads {other:?}"), Harm::ByMeaning)
        }
        3 => {
            let (a, b) = (one_of(&inputs, random)?, one_of(&inputs, random)?);
            node.0.swap(a, b);
            (
                "reads two inputs the other way round".to_owned(),
                Harm::ByMeaning,
            )
        }
        4 => {
            let input = one_of(&inputs, random)?;
            match random.below(2) {
                0 => node.0[input].1 = Value::Bytes(Vec::new()),
                _ => drop(node.0.remove(input)),
            }
            ("reads one input less".to_owned(), Harm::ByMeaning)
        }
        5 => {
            let place = one_of(&node.places([4, 7][pick(random, 2)]), random)?;
            let operators = [
                "Relu",
                "Tanh",
                "Identity",
                "Add",
                "Mul",
                "",
                "com.microsoft",
            ];
            node.0[place].1 = Value::Bytes(operators[pick(random, 7)].as_bytes().to_vec());
            ("has another operator".to_owned(), Harm::ByMeaning)
        }
        6 => {
            let place = one_of(&node.places(ATTRIBUTE), random)?;
            let mut attribute = node.at(place)?;
            attribute.0.retain(|(number, _)| *number != 20);
            match random.below(2) {
                0 => {}
                _ => attribute
                    .0
                    .push((20, Value::Varint([15, 77][pick(random, 2)]))),
            }
            node.put(place, &attribute);
            (
                format!("has {:?} without a type that exists", attribute.text(1)),
                Harm::Always,
            )
        }
        _ => {
            let place = one_of(&node.places(ATTRIBUTE), random)?;
            let mut attribute = node.at(place)?;
            let values =
                [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 22].map(|number| attribute.places(number));
            let value = one_of(&values.concat(), random)?;
            if random.below(6) == 0 {
                node.0.remove(place);
                graph.put(at, &node);
                return Some((format!("{name:?} lacks an attribute"), Harm::ByMeaning));
            }
            deep(&mut attribute, value, random)?;
            node.put(place, &attribute);
            (
                format!("has {:?} changed", attribute.text(1)),
                Harm::ByMeaning,
            )
        }
    };
    graph.put(at, &node);
    Some((format!("{name:?} {what}"), harm))
}

/// Changes a value, or something in it, if it is a tensor or a body.
fn deep(message: &mut Msg, place: usize, random: &mut impl Draw) -> Option<()> {
    let number = message.0[place].0;
    match message
        .at(place)
        .filter(|inner| [5, 6, 10, 11, 22].contains(&number) && !inner.0.is_empty())
    {
        None => shake(&mut message.0[place].1, random),
        Some(mut inner) => {
            let field = pick(random, inner.0.len());
            match inner.0[field].0 {
                1 if number == 6 => {
                    let mut node = inner.at(field)?;
                    let part = pick(random, node.0.len());
                    deep(&mut node, part, random)?;
                    inner.put(field, &node);
                }
                _ => shake(&mut inner.0[field].1, random)?,
            }
            message.put(place, &inner);
            Some(())
        }
    }
}
