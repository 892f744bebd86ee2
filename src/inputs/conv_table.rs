//! The table of `--conv-table`: what convolutions take with cuDNN's algorithms. `docs/convolution-algorithms.md`
//! describes it, `ckpt-opt conv-table` prints one.

use std::io;
use std::path::{Path, PathBuf};

use ckpt_passes::bytes::Bytes;
use ckpt_passes::cost::Nanos;
use ckpt_passes::operators::algorithms::{Direction, NAMES};
use ckpt_passes::runtime::convolutions::{
    ConvolutionTable, Product, ProductAttributes, Timed, fastest_first,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thiserror::Error;

use super::file;

/// Why a table cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ConvTableError {
    #[error("{}: cannot read the convolution table: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}: not a convolution table: {problem}", path.display())]
    Form { path: PathBuf, problem: String },
}

/// Reads the table at `path`, which has to be of the device called `device`.
pub fn read(path: &Path, device: &str) -> Result<ConvolutionTable, ConvTableError> {
    let text = file::read(path).map_err(|error| ConvTableError::Read {
        path: path.to_owned(),
        error,
    })?;
    parse(&text, device).map_err(|problem| ConvTableError::Form {
        path: path.to_owned(),
        problem,
    })
}

/// The same of a text that is in memory; an error says what is wrong in it.
pub fn parse(text: &[u8], device: &str) -> Result<ConvolutionTable, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut top = Object::of(value, String::new())?;
    let name: String = top.field("device")?;
    if name != device {
        return Err(format!(
            "device: it is of {name:?}, and --device is {device}"
        ));
    }
    let _source: Option<String> = top.optional("source")?;
    let entries: Vec<Value> = top.field("convolutions")?;
    top.end()?;
    let mut table = ConvolutionTable::new();
    for (position, entry) in entries.into_iter().enumerate() {
        let place = format!("convolutions[{position}]");
        let (product, algorithms) = convolution(Object::of(entry, place.clone())?)?;
        if table.insert(product, algorithms).is_some() {
            return Err(format!("{place}: the same product as an entry before it"));
        }
    }
    Ok(table)
}

fn convolution(mut entry: Object) -> Result<(Product, Vec<Timed>), String> {
    let direction: String = entry.field("product")?;
    let directions = Direction::ALL;
    let found = directions.iter().find(|one| one.name() == direction);
    let Some(&direction) = found else {
        return Err(entry.unknown("product", &direction, &directions.map(Direction::name)));
    };
    let mut attributes = Object::of(entry.field("attributes")?, entry.at("attributes"))?;
    let product = Product {
        operator: entry.field("operator")?,
        direction,
        inputs: entry.field("inputs")?,
        attributes: ProductAttributes {
            auto_pad: attributes.optional("auto_pad")?,
            pads: attributes.optional("pads")?,
            strides: attributes.optional("strides")?,
            dilations: attributes.optional("dilations")?,
            group: attributes.optional("group")?,
        },
        element_type: entry.field("element_type")?,
    };
    attributes.end()?;
    let _nodes: Option<Vec<String>> = entry.optional("nodes")?;
    let place = entry.at("algorithms");
    let all: Vec<Value> = entry.field("algorithms")?;
    entry.end()?;
    if all.is_empty() {
        return Err(format!("{place}: expected at least one"));
    }
    let each = all.into_iter().enumerate().map(|(position, one)| {
        let mut one = Object::of(one, format!("{place}[{position}]"))?;
        let name: String = one.field("algorithm")?;
        let Some(&name) = NAMES.iter().find(|&&known| known == name) else {
            return Err(one.unknown("algorithm", &name, &NAMES));
        };
        let timed = Timed {
            name,
            // Nothing is free.
            time: Nanos(one.field::<u64>("time_ns")?.max(1)),
            workspace: Bytes(one.field("workspace_bytes")?),
        };
        one.end()?;
        Ok(timed)
    });
    Ok((product, fastest_first(each.collect::<Result<_, String>>()?)))
}

/// An object that is taken apart field by field, so that every problem has a place.
struct Object {
    fields: Map<String, Value>,
    /// Nothing for the whole file.
    place: String,
}

impl Object {
    fn of(value: Value, place: String) -> Result<Object, String> {
        match value {
            Value::Object(fields) => Ok(Object { fields, place }),
            _ if place.is_empty() => Err("expected an object".to_owned()),
            _ => Err(format!("{place}: expected an object")),
        }
    }

    fn at(&self, field: &str) -> String {
        match self.place.as_str() {
            "" => field.to_owned(),
            place => format!("{place}.{field}"),
        }
    }

    fn field<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, String> {
        let value = self.optional(name)?;
        value.ok_or_else(|| format!("{}: missing", self.at(name)))
    }

    fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, String> {
        let value = self.fields.remove(name).map(serde_json::from_value);
        value
            .transpose()
            .map_err(|error| format!("{}: {error}", self.at(name)))
    }

    fn unknown(&self, field: &str, name: &str, known: &[&str]) -> String {
        let place = self.at(field);
        format!("{place}: {name:?} is none of {}", known.join(", "))
    }

    /// Nothing is left over.
    fn end(self) -> Result<(), String> {
        match self.fields.keys().next() {
            Some(name) => Err(format!("{}: no such field", self.at(name))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    fn table() -> Value {
        json!({
            "device": "v100",
            "source": "model",
            "convolutions": [{
                "operator": "Conv",
                "product": "forward",
                "inputs": [[2, 4, 8, 8], [16, 4, 3, 3]],
                "attributes": {"pads": [1, 1, 1, 1], "group": 1},
                "element_type": "float",
                "nodes": ["conv1"],
                "algorithms": [
                    {"algorithm": "fft", "time_ns": 20, "workspace_bytes": 300},
                    {"algorithm": "implicit-gemm", "time_ns": 10, "workspace_bytes": 0},
                ],
            }],
        })
    }

    #[test]
    fn a_table_has_algorithms_for_products_the_fastest_first() {
        let table = parse(table().to_string().as_bytes(), "v100").unwrap();
        assert_eq!(table.len(), 1);
        let (product, algorithms) = table.first_key_value().unwrap();
        assert_eq!(product.inputs, [[2, 4, 8, 8], [16, 4, 3, 3]]);
        assert_eq!(product.direction, Direction::Forward);
        assert_eq!(product.attributes.pads.as_deref(), Some(&[1; 4][..]));
        assert_eq!(product.attributes.strides, None);
        let names: Vec<&str> = algorithms.iter().map(|one| one.name).collect();
        assert_eq!(names, ["implicit-gemm", "fft"]);
        assert_eq!(algorithms[1].workspace, Bytes(300));
    }

    #[test]
    fn errors_name_the_entry_and_the_field() {
        let error = |place: &str, value: Value| {
            let mut table = table();
            *table.pointer_mut(place).expect("there") = value;
            parse(table.to_string().as_bytes(), "v100").unwrap_err()
        };
        let [first, algorithm] = ["/convolutions/0", "/convolutions/0/algorithms/1"];
        let at = |within: &str, field: &str| format!("{within}/{field}");
        assert_snapshot!(error("/device", json!("a100")), @r#"device: it is of "a100", and --device is v100"#);
        assert_snapshot!(error("/convolutions", json!(7)), @"convolutions: invalid type: integer `7`, expected a sequence");
        assert_snapshot!(error(first, json!([])), @"convolutions[0]: expected an object");
        assert_snapshot!(error(first, json!({"product": "forward", "attributes": {}})), @"convolutions[0].operator: missing");
        assert_snapshot!(error(&at(first, "product"), json!("sideways")), @r#"convolutions[0].product: "sideways" is none of forward, backward-data, backward-filter"#);
        assert_snapshot!(error(&at(first, "inputs"), json!([[2, -4]])), @"convolutions[0].inputs: invalid value: integer `-4`, expected u64");
        assert_snapshot!(error(&at(first, "attributes"), json!({"dilation": 1})), @"convolutions[0].attributes.dilation: no such field");
        assert_snapshot!(error(&at(first, "algorithms"), json!([])), @"convolutions[0].algorithms: expected at least one");
        assert_snapshot!(error(&at(algorithm, "algorithm"), json!("luck")), @r#"convolutions[0].algorithms[1].algorithm: "luck" is none of implicit-gemm, precomputed-gemm, deterministic-gemm, gemm, split-gemm, fft, tiled-fft, winograd, winograd-non-fused, channels-last"#);
        assert_snapshot!(error(&at(algorithm, "time_ns"), json!(-1)), @"convolutions[0].algorithms[1].time_ns: invalid value: integer `-1`, expected u64");
        let mut twice = table();
        let entry = twice["convolutions"][0].clone();
        twice["convolutions"].as_array_mut().unwrap().push(entry);
        assert_snapshot!(parse(twice.to_string().as_bytes(), "v100").unwrap_err(), @"convolutions[1]: the same product as an entry before it");
        assert_snapshot!(parse(b"{", "v100").unwrap_err(), @"EOF while parsing an object at line 1 column 1");
    }
}
