//! A model file: its bytes, mapped into memory, and where the parts that we read lie in them.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;
use prost::Message as _;
use sha2::{Digest, Sha256};

use super::file::{FileIdentity, FileState, kind};
use super::import_error::{ImportError, ImportProblem};
use super::schema::{StringStringEntryProto, graph, model};
use super::wire::{Message, WireError};

/// What keys of `metadata_props` begin with that are our own.
pub(crate) const METADATA: &str = "ckpt-opt.";

/// Protobuf's readers refuse longer messages.
pub(crate) const LONGEST: u64 = i32::MAX as u64;

/// A model as it was read. Holds no copy of the file: its pages stay on disk until they are
/// looked at, and the system can drop them again.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) bytes: Bytes,
    pub(crate) source: Option<Source>,
    /// What GraphProto consists of: the contents of each `graph` field, to be read in turn.
    pub(crate) graph: Vec<Range<usize>>,
    /// The graph's nodes, in file order.
    pub(crate) nodes: Vec<NodePlace>,
}

/// Where a node lies in the file.
#[derive(Clone, Debug)]
pub(crate) struct NodePlace {
    /// The whole field: key, length, NodeProto.
    pub(crate) field: Range<usize>,
    /// NodeProto alone.
    pub(crate) contents: Range<usize>,
}

/// The file that a model was read from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) identity: FileIdentity,
    /// The file itself, whatever its name stands for meanwhile, ...
    file: Arc<File>,
    /// ... and how it was when it was opened.
    state: FileState,
}

impl Model {
    /// Maps the file at `path` and finds its graph.
    ///
    /// Mapped, not read: of a file of nearly 2 GiB most is weights, which are looked at once, when they are copied,
    /// and the system can drop pages that are on the disk. If somebody changes the file meanwhile,
    /// [`Model::has_changed`] tells; if somebody cuts it off, the program ends (`signals.rs`).
    pub fn open(path: &Path) -> Result<Model, ImportError> {
        let in_file = |problem| ImportError {
            file: path.display().to_string(),
            problem,
        };
        let cannot_open = |source| in_file(ImportProblem::Open { source });
        // Before opening: to open a pipe would wait for its writer.
        let metadata = std::fs::metadata(path).map_err(cannot_open)?;
        if let Some(what) = kind(&metadata) {
            return Err(in_file(ImportProblem::NotAFile { what }));
        }
        let bytes = metadata.len();
        if bytes > LONGEST {
            return Err(in_file(ImportProblem::TooLarge { bytes }));
        }
        let file = File::open(path).map_err(cannot_open)?;
        #[allow(unsafe_code)]
        // SAFETY: the mapping is read-only and private, and is handed out as `&[u8]` only. Our own
        // writer renames new files into place and refuses this one. Against other programs that write to
        // it there is no certain remedy but a copy; what was made of changed bytes is not kept.
        let map = unsafe { Mmap::map(&file) }.map_err(cannot_open)?;
        let identity = FileIdentity::of(path).map_err(cannot_open)?;
        let state = FileState::of(&file).map_err(cannot_open)?;
        let mut model = Model::parse(Bytes::from_owner(map)).map_err(in_file)?;
        model.source = Some(Source {
            path: path.to_owned(),
            identity,
            file: Arc::new(file),
            state,
        });
        Ok(model)
    }

    /// Has the file been written to since it was opened? (Another file of its name is another file.)
    pub fn has_changed(&self) -> bool {
        let changed = |source: &Source| {
            let now = FileState::of(&source.file);
            now.map_or(true, |now| now != source.state)
        };
        self.source.as_ref().is_some_and(changed)
    }

    /// Finds the graph of a model that is in memory.
    pub fn from_bytes(bytes: Bytes) -> Result<Model, ImportError> {
        let in_memory = |problem| ImportError {
            file: "model in memory".to_owned(),
            problem,
        };
        match bytes.len() as u64 {
            bytes if bytes > LONGEST => Err(in_memory(ImportProblem::TooLarge { bytes })),
            _ => Model::parse(bytes).map_err(in_memory),
        }
    }

    /// The GraphProto that `pieces` make up, as the graph of a model that has nothing else. (Pieces of a message stand for the
    /// message when they are put together.)
    pub(crate) fn of_graph(pieces: &[Bytes]) -> Result<Model, WireError> {
        let bytes = match pieces {
            [whole] => whole.clone(),
            pieces => Bytes::from(pieces.concat()),
        };
        let contents = 0..bytes.len();
        let mut nodes = Vec::new();
        nodes_of(Message::of(&bytes, &contents), &mut nodes)?;
        Ok(Model {
            bytes,
            source: None,
            graph: vec![contents],
            nodes,
        })
    }

    /// The SHA-256 of the file (without data that it keeps in others), in hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        let digest = Sha256::digest(&self.bytes);
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Keys and values of `metadata_props`, as far as they can be read.
    pub(crate) fn metadata(&self) -> BTreeMap<String, String> {
        let fields = self.message().fields().flatten();
        let entries = fields.filter(|field| field.number == model::METADATA_PROPS);
        let entries = entries.filter_map(|field| {
            let contents = field.message().ok()?;
            let entry = StringStringEntryProto::decode(contents.bytes).ok()?;
            Some((entry.key, entry.value))
        });
        entries.collect()
    }

    /// All of ModelProto.
    pub(crate) fn message(&self) -> Message<'_> {
        Message {
            bytes: &self.bytes,
            start: 0,
        }
    }

    /// The pieces of GraphProto.
    pub(crate) fn graph_message(&self) -> impl Iterator<Item = Message<'_>> {
        self.graph
            .iter()
            .map(|range| Message::of(&self.bytes, range))
    }

    /// How errors call the model.
    pub(crate) fn file_name(&self) -> String {
        match &self.source {
            Some(source) => source.path.display().to_string(),
            None => "model in memory".to_owned(),
        }
    }

    fn parse(bytes: Bytes) -> Result<Model, ImportProblem> {
        let mut model = Model {
            bytes,
            source: None,
            graph: Vec::new(),
            nodes: Vec::new(),
        };
        match model.find_graph() {
            Ok((graph, nodes)) => (model.graph, model.nodes) = (graph, nodes),
            Err(source) => {
                return Err(match sniff(&model.bytes) {
                    Some(found) => ImportProblem::NotOnnx { found },
                    None => ImportProblem::Malformed { source },
                });
            }
        }
        if model.graph.is_empty() {
            return Err(match sniff(&model.bytes) {
                Some(found) => ImportProblem::NotOnnx { found },
                None => ImportProblem::NoGraph,
            });
        }
        if u32::try_from(model.nodes.len()).is_err() {
            return Err(ImportProblem::TooMany { what: "nodes" });
        }
        Ok(model)
    }

    /// The contents of GraphProto and of its nodes.
    fn find_graph(&self) -> Result<(Vec<Range<usize>>, Vec<NodePlace>), WireError> {
        let mut graphs = Vec::new();
        let mut nodes = Vec::new();
        for field in self.message().fields() {
            let field = field?;
            if field.number == model::GRAPH {
                let contents = field.message()?;
                graphs.push(contents.range());
                nodes_of(contents, &mut nodes)?;
            }
        }
        Ok((graphs, nodes))
    }
}

/// Adds the nodes of a piece of a GraphProto.
fn nodes_of(piece: Message<'_>, nodes: &mut Vec<NodePlace>) -> Result<(), WireError> {
    for field in piece.fields() {
        let field = field?;
        if field.number == graph::NODE {
            let contents = field.message()?.range();
            nodes.push(NodePlace {
                field: field.span,
                contents,
            });
        }
    }
    Ok(())
}

/// What bytes that are no model look like, in words that complete "this is ...".
fn sniff(bytes: &[u8]) -> Option<&'static str> {
    let starts = |magic: &[u8]| bytes.starts_with(magic);
    if bytes.is_empty() {
        Some("an empty file")
    } else if starts(b"version https://git-lfs") {
        Some("a Git LFS pointer: fetch the file itself with `git lfs pull`")
    } else if starts(b"PK\x03\x04") {
        Some("a ZIP archive, perhaps a PyTorch checkpoint: export it to ONNX first")
    } else if starts(b"\x89HDF") {
        Some("an HDF5 file")
    } else if bytes.get(4..8) == Some(b"ORTM") {
        Some("an ONNX Runtime .ort file: use the .onnx file it was made from")
    } else if starts(b"\x1f\x8b") {
        Some("gzip data: decompress it first")
    } else if is_text(&bytes[..bytes.len().min(1024)]) {
        let text_form = starts(b"<")
            && bytes
                .windows(10)
                .take(100)
                .any(|part| part == b"ir_version");
        Some(if text_form {
            "ONNX in text form: parse it with onnx.parser first"
        } else {
            "text"
        })
    } else {
        None
    }
}

fn is_text(bytes: &[u8]) -> bool {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // The window may end inside a character.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.is_empty()
        && text
            .chars()
            .all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'))
}
