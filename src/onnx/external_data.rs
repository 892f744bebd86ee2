//! Tensors whose contents lie in other files.
//!
//! A location is relative to the model's folder. A rewritten model keeps its locations: if it
//! lies in another folder, the same files must be found there. Locations are never rewritten to
//! lead out of the new folder: ONNX Runtime follows `../weights.bin` and absolute paths,
//! but ONNX's own `load` and checker (1.16) refuse them, so the file would be of little use.
//! A copy (or a hard link) in the new folder works for all of them; 1.26.0 and 1.32.0 refuse a symbolic link.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use super::destination::Destination;
use super::export_error::ExportError;
use super::external_file::{ExternalFile, Unresolved};
use super::file::{FileIdentity, folder_of, kind};
use super::model::Model;
use super::schema::external_data as entry;
use super::schema::{
    attribute, function, graph, model, node, sparse_tensor, tensor, training_info,
};
use super::tensor::text;
use super::wire::{Message, WireError};

/// Messages nested deeper are not searched, and refused by protobuf's own readers.
const DEEPEST: usize = 100;

/// What the model says of the contents of one tensor.
#[derive(Debug, Default)]
struct Place {
    location: String,
    /// Where they end.
    end: u64,
}

impl Model {
    /// The files that tensors of the model lie in, anywhere in it: initializers, attributes,
    /// subgraphs, functions, training information. Sorted by location, each once.
    ///
    /// What cannot be read there is passed over: nobody can find a file that it would name.
    pub fn external_data(&self) -> Vec<ExternalFile> {
        let mut found = BTreeMap::new();
        search(Kind::Model, self.message(), 0, &mut found);
        let folder = self.source.as_ref().map(|source| folder_of(&source.path));
        let file = |(location, mut file): (String, ExternalFile)| {
            file.path = folder.as_ref().map(|folder| folder.join(location));
            file
        };
        found.into_iter().map(file).collect()
    }
}

/// Will a model at `out` find its data, and leave it alone?
pub(crate) fn check(
    model: &Model,
    out: &Path,
    destination: &Destination,
) -> Result<(), ExportError> {
    let folder = model.source.as_ref().map(|source| folder_of(&source.path));
    let identity = folder
        .as_ref()
        .and_then(|folder| FileIdentity::of(folder).ok());
    let stays = identity.is_some() && identity == FileIdentity::of(&destination.folder).ok();
    let mut files = Vec::new();
    for file in model.external_data() {
        let target = destination.folder.join(&file.location);
        for path in file.path.iter().chain([&target]) {
            if FileIdentity::of(path).is_ok_and(|identity| destination.is(&identity)) {
                let location = file.location;
                return Err(ExportError::OntoExternalData {
                    path: out.to_owned(),
                    location,
                });
            }
        }
        // In the same folder nothing changes, even where a file is missing.
        let resolves = stays
            || match &file.path {
                Some(path) => stands_for(&target, path).map_err(|error| ExportError::Write {
                    path: target.clone(),
                    error,
                })?,
                None => target.exists(),
            };
        if !resolves {
            files.push((file, target));
        }
    }
    if files.is_empty() {
        return Ok(());
    }
    Err(ExportError::ExternalData {
        path: out.to_owned(),
        problem: Unresolved { folder, files },
    })
}

/// Is `target` the same file as `original`, an equal one, or where it was moved to?
fn stands_for(target: &Path, original: &Path) -> io::Result<bool> {
    match (FileIdentity::of(target), FileIdentity::of(original)) {
        (Ok(target), Ok(original)) if target == original => return Ok(true),
        (Ok(_), Ok(_)) => {}
        (Ok(_), Err(_)) => return Ok(true),
        (Err(_), _) => return Ok(false),
    }
    // To open a pipe would wait for its writer.
    if kind(&fs::metadata(original)?).is_some() || kind(&fs::metadata(target)?).is_some() {
        return Ok(false);
    }
    let (mut a, mut b) = (File::open(original)?, File::open(target)?);
    let length = a.metadata()?.len();
    if length != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut a_block, mut b_block) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut left = length;
    while left > 0 {
        let size = left.min(a_block.len() as u64) as usize;
        a.read_exact(&mut a_block[..size])?;
        b.read_exact(&mut b_block[..size])?;
        if a_block[..size] != b_block[..size] {
            return Ok(false);
        }
        left -= size as u64;
    }
    Ok(true)
}

/// The messages that tensors can be in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Model,
    Training,
    Function,
    Graph,
    Node,
    Attribute,
    Sparse,
    Tensor,
}

/// Which field of which message leads to a tensor.
const PATHS: [(Kind, u32, Kind); 19] = [
    (Kind::Model, model::GRAPH, Kind::Graph),
    (Kind::Model, model::TRAINING_INFO, Kind::Training),
    (Kind::Model, model::FUNCTIONS, Kind::Function),
    (Kind::Training, training_info::INITIALIZATION, Kind::Graph),
    (Kind::Training, training_info::ALGORITHM, Kind::Graph),
    (Kind::Function, function::NODE, Kind::Node),
    (Kind::Function, function::ATTRIBUTE_PROTO, Kind::Attribute),
    (Kind::Graph, graph::NODE, Kind::Node),
    (Kind::Graph, graph::INITIALIZER, Kind::Tensor),
    (Kind::Graph, graph::SPARSE_INITIALIZER, Kind::Sparse),
    (Kind::Node, node::ATTRIBUTE, Kind::Attribute),
    (Kind::Attribute, attribute::T, Kind::Tensor),
    (Kind::Attribute, attribute::TENSORS, Kind::Tensor),
    (Kind::Attribute, attribute::G, Kind::Graph),
    (Kind::Attribute, attribute::GRAPHS, Kind::Graph),
    (Kind::Attribute, attribute::SPARSE_TENSOR, Kind::Sparse),
    (Kind::Attribute, attribute::SPARSE_TENSORS, Kind::Sparse),
    (Kind::Sparse, sparse_tensor::VALUES, Kind::Tensor),
    (Kind::Sparse, sparse_tensor::INDICES, Kind::Tensor),
];

/// Adds the files that `message` names, by location.
fn search(
    kind: Kind,
    message: Message<'_>,
    depth: usize,
    found: &mut BTreeMap<String, ExternalFile>,
) {
    if depth == DEEPEST {
        return;
    }
    if kind == Kind::Tensor {
        if let Ok((name, Some(place))) = name_and_place(message) {
            let file = found
                .entry(place.location.clone())
                .or_insert_with(|| ExternalFile {
                    location: place.location,
                    tensor: name.clone(),
                    bytes: 0,
                    last: name.clone(),
                    path: None,
                });
            if place.end > file.bytes {
                (file.bytes, file.last) = (place.end, name);
            }
        }
        return;
    }
    for field in message.fields().flatten() {
        let inner = PATHS
            .iter()
            .find(|path| (path.0, path.1) == (kind, field.number));
        if let (Some((_, _, inner)), Ok(contents)) = (inner, field.message()) {
            search(*inner, contents, depth + 1, found);
        }
    }
}

/// A tensor's name, and where its contents lie if not in the model.
fn name_and_place(message: Message<'_>) -> Result<(String, Option<Place>), WireError> {
    let mut name = String::new();
    let (mut location, mut start, mut length) = (None, 0_u64, 0);
    for field in message.fields() {
        let field = field?;
        match field.number {
            tensor::NAME => name = text(field.message()?)?,
            tensor::EXTERNAL_DATA => {
                let (mut key, mut value) = (&[][..], None);
                for part in field.message()?.fields() {
                    let part = part?;
                    match part.number {
                        entry::KEY => key = part.message()?.bytes,
                        entry::VALUE => value = Some(part.message()?),
                        _ => {}
                    }
                }
                let Some(value) = value else { continue };
                // What is no number is for the runtime to refuse.
                let number = || Ok(text(value)?.parse().unwrap_or(0));
                match key {
                    b"location" => location = Some(text(value)?),
                    b"offset" => start = number()?,
                    b"length" => length = number()?,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let end = start.saturating_add(length);
    Ok((name, location.map(|location| Place { location, end })))
}
